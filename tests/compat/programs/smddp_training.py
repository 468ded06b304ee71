"""What trains over torch.distributed, over the backend `smddp`; prints how far it is from the same without it."""

import copy
import json
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as LibrarysDDP

STEPS, BATCH, WIDTH = 3, 8, 6

dist.init_process_group("smddp")
rank, size = dist.get_rank(), dist.get_world_size()
gloo = dist.new_group(backend="gloo")
torch.manual_seed(7)
MODEL = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, WIDTH))
BATCHES = torch.randn(STEPS, size, BATCH, WIDTH)


def trained(wrapped, optimizer):
    """Some steps on this rank's part of every batch."""
    for batch in BATCHES:
        optimizer.zero_grad()
        wrapped(batch[rank]).square().mean().backward()
        optimizer.step()


def adam(module):
    return torch.optim.Adam(module.parameters(), lr=0.01)


def plain():
    """The weights after training over gloo."""
    model = copy.deepcopy(MODEL)
    wrapped = DistributedDataParallel(model, process_group=gloo)
    trained(wrapped, adam(wrapped))
    return model.state_dict()


EXPECTED = plain()


def distance(state):
    """The largest difference to the weights that gloo has trained; nothing stands for weights that have not moved."""
    moved = any(not torch.equal(state[name], value) for name, value in MODEL.state_dict().items())
    return max(float((state[name] - EXPECTED[name]).abs().max()) for name in EXPECTED) if moved else None


def ddp(make):
    model = copy.deepcopy(MODEL)
    wrapped = make(model)
    trained(wrapped, adam(wrapped))
    return distance(model.state_dict())


def no_sync():
    """Gradients of two halves, the first of them without an exchange: those of the whole batch."""
    model = LibrarysDDP(copy.deepcopy(MODEL), None, None, False)
    with model.no_sync():
        (model(BATCHES[0][rank][: BATCH // 2]).square().mean() / 2).backward()
    (model(BATCHES[0][rank][BATCH // 2 :]).square().mean() / 2).backward()
    whole = copy.deepcopy(MODEL)
    whole(BATCHES[0].flatten(0, 1)).square().mean().backward()
    pairs = zip(model.parameters(), whole.parameters(), strict=True)
    return max(float((ours.grad - theirs.grad).abs().max()) for ours, theirs in pairs)


def zero():
    model = copy.deepcopy(MODEL)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    trained(DistributedDataParallel(model), optimizer)
    mine = sum(value.numel() for state in optimizer.optim.state.values() for value in state.values() if value.dim())
    return distance(model.state_dict()), mine


def sharded():
    model = copy.deepcopy(MODEL)
    for layer in (model[0], model[2]):
        fully_shard(layer)
    return fully_shard(model)


def whole(model):
    return {name: value.full_tensor() for name, value in model.state_dict().items()}


def fsdp():
    model = sharded()
    trained(model, adam(model))
    return distance(whole(model)), model[0].weight.to_local().shape[0]


def checkpoint():
    """Saved by all ranks, loaded into a fresh model."""
    model, fresh = sharded(), sharded()
    trained(model, adam(model))
    folder = sys.argv[1]
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)
    state = {"model": get_model_state_dict(fresh)}
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(fresh, state["model"])
    return distance(whole(fresh))


def pipelining():
    """Four microbatches through one stage a rank, one forward pass and one backward pass in turn."""
    torch.manual_seed(1)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(size)]
    batch, target, microbatches = BATCHES[0, 0], torch.zeros(BATCH, WIDTH), 4
    reference = copy.deepcopy(nn.Sequential(*blocks))
    loss = nn.functional.mse_loss(reference(batch), target)
    loss.backward()
    stage = PipelineStage(blocks[rank], rank, size, torch.device("cpu"))
    schedule, losses = Schedule1F1B(stage, microbatches, loss_fn=nn.functional.mse_loss), []
    last = rank == size - 1
    schedule.step(*([batch] if rank == 0 else []), target=target if last else None, losses=losses if last else None)
    pairs = zip(blocks[rank].parameters(), reference[rank].parameters(), strict=True)
    difference = max(float((ours.grad - theirs.grad).abs().max()) for ours, theirs in pairs)
    return difference, abs(float(sum(losses) / microbatches - loss)) if last else 0.0


found = {
    "ddp": ddp(DistributedDataParallel),
    "the library's ddp": ddp(lambda model: LibrarysDDP(model, None, None, False, bucket_cap_mb=1)),
    "no_sync": no_sync(),
    "zero": zero(),
    "fsdp": fsdp(),
    "checkpoint": checkpoint(),
    "pipelining": pipelining(),
}
print(json.dumps(found), flush=True)
dist.barrier()
dist.destroy_process_group()
