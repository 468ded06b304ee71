"""Linear modules and a loss of which the ranks of a tensor group have parts: `split_products.py OUT`.

Rank 0 writes OUT, by names: what algorun computes on rank 0, the same by torch's own parallel styles and `loss_parallel`, and the loss
of one process. Of five words each of two ranks has some, and the last of four has none; torch's `loss_parallel` does not end then.
"""

import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.nn import functional

from algorun_train.data.batch import IGNORED
from algorun_train.parallel.shard.sharded_model import TensorAxis, make_mesh
from algorun_train.parallel.shard.split import Split
from algorun_train.parallel.shard.split_linear import by_columns, by_rows
from algorun_train.parallel.shard.split_logits import SplitLogits
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world

WORDS, WIDTH, INNER, ROWS = 5, 12, 16, 7
Found = dict[str, torch.Tensor]


def modules() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH, bias=False))


def own_part(tensor: torch.Tensor | None) -> torch.Tensor:
    """What this rank has of it."""
    assert tensor is not None
    own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return own.detach().add(0)  # a plain one, also of what torch still waits for


def pass_through(model: nn.Sequential) -> Found:
    inputs = torch.randn(3, ROWS, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()
    output = model(inputs)
    output.square().sum().backward()
    gradients = {name: own_part(weight.grad) for name, weight in model.named_parameters()}
    return {"output": own_part(output), "inputs": own_part(inputs.grad), **gradients}


def products(axis: TensorAxis) -> Found:
    model = modules()
    first, _, second = model
    rows = slice(axis.index * INNER // axis.ranks, (axis.index + 1) * INNER // axis.ranks)
    first.weight, first.bias = nn.Parameter(first.weight[rows].clone()), nn.Parameter(first.bias[rows].clone())
    second.weight = nn.Parameter(second.weight[:, rows].clone())
    by_columns(first, axis)
    by_rows(second, axis)
    return pass_through(model)


def products_of_torch(axis: TensorAxis) -> Found:
    return pass_through(parallelize_module(modules(), axis.mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}))


def examples() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(2)
    labels = torch.randint(WORDS, (2, ROWS), generator=random)
    labels[0, 2] = labels[1, 0] = IGNORED
    return torch.randn(2, ROWS, WORDS, generator=random) * 4, labels


def losses(axis: TensorAxis) -> Found:
    words = Split((WORDS, WIDTH), 0, axis.ranks)
    ((begin, end),) = words.ranges(axis.index)
    logits, labels = examples()
    own = logits[..., begin:end].clone().requires_grad_()
    loss = SplitLogits(axis, words).sum_of_losses(own, labels, IGNORED)
    (loss * 0.25).backward()
    return {"loss": own_part(loss), "logits": own_part(own.grad)}


def losses_of_torch(axis: TensorAxis) -> Found:
    logits, labels = examples()
    own = logits.chunk(axis.ranks, dim=-1)[axis.index].clone().requires_grad_()
    parts = DTensor.from_local(
        own.flatten(0, 1),
        axis.mesh,
        (Shard(1),),
        run_check=False,
        shape=torch.Size((2 * ROWS, WORDS)),
        stride=(WORDS, 1),
    )
    with loss_parallel():
        loss = functional.cross_entropy(parts, labels.flatten(), ignore_index=IGNORED, reduction="sum")
        (loss * 0.25).backward()
    return {"loss": own_part(loss), "logits": own_part(own.grad)}


def losses_alone(axis: TensorAxis) -> Found:
    logits, labels = examples()
    loss = functional.cross_entropy(
        logits.requires_grad_().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    (loss * 0.25).backward()
    return {"loss": own_part(loss), "logits": own_part(logits.grad).chunk(axis.ranks, dim=-1)[0]}


def compute(comm: Communicator) -> None:
    axis = make_mesh(comm.device, comm.rank, comm.size, 1, comm.size).tensor
    assert axis
    found = {"products": products(axis), "products of torch": products_of_torch(axis)}
    found |= {"losses": losses(axis), "losses alone": losses_alone(axis)}
    if comm.size == 2:
        found["losses of torch"] = losses_of_torch(axis)
    if comm.is_leader:
        torch.save(found, Path(sys.argv[1]))


with joined(read_world(os.environ)) as comm:
    compute(comm)
