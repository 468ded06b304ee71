"""Ranks, groups and messages, as the library's documentation shows them."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import smdistributed.modelparallel.torch as smp
from tests.compat.smp_runs import say
from tests.train import short_collectives

AXES = ("mp", "pp", "dp", "rdp", "tp")
WORLD_RANK, MP_RANK, DP_RANK = smp.RankType.WORLD_RANK, smp.RankType.MP_RANK, smp.RankType.DP_RANK


def refused(call, *args):
    try:
        call(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def places():
    found = {"rank": smp.rank(), "size": smp.size(), "local": [smp.local_rank(), smp.local_size()]}
    for axis in AXES:
        group = getattr(smp, f"get_{axis}_process_group")()
        value = torch.tensor([float(smp.rank())])
        dist.all_reduce(value, group=group)
        found[axis] = [
            getattr(smp, f"{axis}_rank")(),
            getattr(smp, f"{axis}_size")(),
            getattr(smp, f"get_{axis}_group")(),
            value.item(),
        ]
    value = torch.tensor([float(smp.rank())])
    dist.all_reduce(value, group=smp.get_world_process_group())
    return found | {"world": value.item()}


def messages():
    rank, found = smp.rank(), {}
    thing = {"weights": torch.arange(6.0).view(2, 3), "text": "x" * 100_000, "none": None}
    if rank == 2:
        smp.broadcast(thing, smp.CommGroup.WORLD)
    else:
        got = smp.recv_from(2, rank_type=WORLD_RANK)
        found["whole"] = torch.equal(got.pop("weights"), thing.pop("weights")) and got == thing
    if smp.mp_rank() == 1:
        for number in range(3):
            smp.send((rank, number), 0, MP_RANK)
    else:
        found["in order"] = [smp.recv_from(1, rank_type=MP_RANK) for _ in range(3)]
    if smp.dp_rank() == 0:
        smp.broadcast(f"from {rank}", group=smp.DP_GROUP)
    else:
        found["dp"] = smp.recv_from(0, DP_RANK)
    smp.broadcast("nobody else is there", smp.CommGroup.TP_GROUP)
    found["gathered"] = {group.name: smp.allgather(rank, group) for group in smp.CommGroup}
    # Every rank gathers its own length.
    found["lengths"] = [len(text) for text in smp.allgather("x" * rank * 1000, smp.WORLD)]
    return found


def meanings():
    """What a message keeps of tensors, large ones too: what pickle keeps with torch.save."""
    if smp.rank() == 0:
        layer, head = nn.Linear(64, 64), nn.Linear(64, 64, bias=False)
        head.weight = layer.weight
        rows = torch.arange(1000.0)
        thing = {"model": nn.Sequential(layer, head), "views": [rows, rows[500:]], "edges": torch.eye(64).to_sparse()}
        smp.send(thing, 1, WORLD_RANK)
        return None
    got = smp.recv_from(0, WORLD_RANK)
    layer, head = got["model"]
    rows, view = got["views"]
    rows[500] = -1.0
    return {
        "parameters": [isinstance(each, nn.Parameter) and each.requires_grad for each in (layer.weight, layer.bias)],
        "counted": len(list(got["model"].parameters())),
        "tied": head.weight is layer.weight,
        "one storage": view[0].item() == -1.0,
        "sparse": got["edges"].is_sparse and torch.equal(got["edges"].to_dense(), torch.eye(64)),
    }


def waits():
    """`send` ends after the matching `recv_from` has begun; a barrier of one model replica is nobody else's."""
    rank, found = smp.rank(), {}
    if rank == 0:
        smp.send("small", 1, WORLD_RANK)
        sent = time.monotonic()
        found["send waited"] = sent >= smp.recv_from(1, WORLD_RANK)
    elif rank == 1:
        time.sleep(0.3)
        asked = time.monotonic()
        smp.recv_from(0, WORLD_RANK)
        smp.send(asked, 0, WORLD_RANK)
        smp.recv_from(3, WORLD_RANK)  # sent after the barrier of the other replica
    if rank in (2, 3):
        smp.mp_barrier()
    if rank == 3:
        smp.send("on", 1, WORLD_RANK)
    smp.mp_barrier()
    smp.dp_barrier()
    for barrier in (smp.pp_barrier, smp.rdp_barrier, smp.tp_barrier, smp.barrier):
        barrier()
    time.sleep(0.2 * rank)
    before = time.monotonic()
    smp.barrier(smp.WORLD)
    after = time.monotonic()
    found["barrier waited"] = after >= max(smp.allgather(before, smp.WORLD))
    return found


def refusals():
    return {
        "range": refused(smp.send, 1, 2, MP_RANK),
        "negative": refused(smp.recv_from, -1, WORLD_RANK),
        "no number": refused(smp.recv_from, "0", WORLD_RANK),
        "itself": refused(smp.send, 1, smp.rank(), WORLD_RANK),
        "type": refused(smp.send, 1, 0, "MP_RANK"),
        "group": refused(smp.allgather, 1, "MP_GROUP"),
        "barrier": refused(smp.barrier, 3),
        "broadcast": refused(smp.broadcast, 3, MP_RANK),
        "object": refused(smp.send, (n for n in "ab"), 1 - smp.rank(), WORLD_RANK),
    }


def patience():
    if smp.rank() == 1:
        time.sleep(8)
        return None
    before = time.monotonic()
    said = refused(smp.recv_from, 1, WORLD_RANK)
    return [said, time.monotonic() - before]


def lone():
    smp.broadcast(1, smp.WORLD)
    smp.barrier()
    return {
        "place": [smp.rank(), smp.size(), smp.pp_size(), smp.dp_size(), smp.get_mp_group()],
        "gathered": smp.allgather("mine", smp.WORLD),
        "group": refused(smp.get_dp_process_group),
        "send": refused(smp.send, 1, 1, WORLD_RANK),
    }


if sys.argv[1] == "patience":
    short_collectives.meet(3)
before_init = refused(smp.rank)
smp.init()
smp.init()
said = globals()[sys.argv[1]]()
say({"before": before_init, "said": said})
if sys.argv[1] not in ("patience", "lone"):
    smp.barrier()
