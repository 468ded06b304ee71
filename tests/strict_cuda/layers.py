"""Layers whose kernels torch chooses by the device: on the strict device they give what they give on the CPU. Two ranks."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import nn

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def layers():
    for dimensions in (1, 2, 3):
        for kind in ("Conv", "ConvTranspose"):
            for options in ({}, {"dilation": 2}, {"groups": 4}, {"groups": 4, "dilation": 2, "bias": False}):
                made = getattr(nn, f"{kind}{dimensions}d")(4, 4, 3, **options)
                yield f"{kind}{dimensions}d {options}", made, torch.randn(2, 4, *[7] * dimensions)
    yield "LSTM", nn.LSTM(5, 6, num_layers=2, bidirectional=True), torch.randn(4, 3, 5)
    yield "LSTM with projection", nn.LSTM(5, 6, proj_size=2, bias=False), torch.randn(4, 3, 5)
    yield "GRU", nn.GRU(5, 6, num_layers=2, bidirectional=True), torch.randn(4, 3, 5)
    yield "GRU without bias", nn.GRU(5, 6, bias=False), torch.randn(4, 3, 5)
    yield "RNN", nn.RNN(5, 6, nonlinearity="relu"), torch.randn(4, 3, 5)
    yield "LSTMCell", nn.LSTMCell(5, 6), torch.randn(3, 5)
    yield "GRUCell", nn.GRUCell(5, 6), torch.randn(3, 5)
    yield "encoder", nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), torch.randn(2, 4, 8)


def run(layer, inputs):
    """The first result, and the gradients of the inputs and all weights."""
    inputs = inputs.requires_grad_()
    result = layer(inputs)
    result = result[0] if isinstance(result, tuple) else result
    (result * torch.arange(result.numel(), device=result.device).view_as(result).cos()).sum().backward()
    return [each.detach().cpu() for each in (result, inputs.grad, *(weight.grad for weight in layer.parameters()))]


def ctc(device):
    logits = torch.linspace(-1, 1, 12 * 2 * 5).sin().view(12, 2, 5).to(device).requires_grad_()
    targets = torch.tensor([[1, 2, 3], [4, 1, 2]], device=device)
    loss = nn.CTCLoss()(logits.log_softmax(2), targets, torch.tensor([12, 12]), torch.tensor([3, 2]))
    loss.backward()
    return [loss.detach().cpu(), logits.grad.cpu()]


def batch_norm(rank):
    """SyncBatchNorm on a share of a batch gives that share of BatchNorm's results on all of it."""
    torch.manual_seed(1)
    whole, batch = nn.BatchNorm2d(3), torch.randn(5, 3, 4, 4)
    shared = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(whole)).cuda()
    mine = slice(0, 2) if rank == 0 else slice(2, 5)
    inputs, share = batch.clone().requires_grad_(), batch[mine].cuda().requires_grad_()
    weights = torch.arange(batch.numel()).view_as(batch).cos()
    (whole(inputs) * weights).sum().backward()
    (shared(share) * weights[mine].cuda()).sum().backward()
    for weight in shared.parameters():
        dist.all_reduce(weight.grad)
    return [
        (share.grad, inputs.grad[mine]),
        *((ours.grad, theirs.grad) for ours, theirs in zip(shared.parameters(), whole.parameters(), strict=True)),
        (shared.running_mean, whole.running_mean),
        (shared.running_var, whole.running_var),
    ]


def main() -> None:
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(0)
    seen = 0
    for name, layer, inputs in layers() if rank == 0 else ():
        ours = run(copy.deepcopy(layer).cuda(), inputs.clone().cuda())
        torch.testing.assert_close(ours, run(layer, inputs), msg=lambda text, name=name: f"{name}: {text}", **TOLERANCE)
        seen += 1
    torch.testing.assert_close(ctc("cuda"), ctc("cpu"), **TOLERANCE)
    for ours, theirs in batch_norm(rank):
        torch.testing.assert_close(ours.cpu(), theirs, **TOLERANCE)
    model, batch = nn.Linear(4, 2).cuda(), torch.ones(6, 4, device="cuda")
    torch.testing.assert_close(nn.DataParallel(model)(batch), model(batch))
    print(f"rank {rank}: {seen} layers are equal", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
