"""How a process joins the other ranks: its device, the roll call, the process group."""

import contextlib
import datetime
import os
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist

from algorun_train.errors import UserError

from . import devices
from .communicator import Communicator
from .roll_call import Place, agree, disagreement, host_name, one_gpu_each
from .world import World

# Longer than any honest pause between two collectives (compilation of the first step, a checkpoint to slow storage);
# short enough that a lost peer is noticed by ranks which no launcher watches.
COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=15)
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}  # of the group that is made for ranks on such devices


def enter(world: World) -> Communicator:
    """Joins the ranks, unless that is done. Gloo carries CPU tensors, NCCL those on GPUs, in one group. On all ranks.

    Raises UserError, equal on all ranks, where a rank cannot use its GPU, or their devices differ; and where the group
    that is there has no backend for CPU tensors.
    """
    device, error = torch.device("cpu"), ""
    try:
        device = devices.find(world, os.environ, _warn)
    except UserError as refused:
        error = str(refused)
    comm = Communicator(world, device)
    if not world.distributed:
        if error:
            raise UserError(error)
        return comm
    backends = dist.get_backend_config() if dist.is_initialized() else BACKENDS[device.type]
    gpu = devices.identity(device) if one_gpu_each(backends, os.environ) else ""
    place = Place(world.rank, host_name(), str(device), gpu, error)
    if not dist.is_initialized():
        _join(world, place)
    elif dist.get_backend() == "nccl":
        raise UserError(
            'torch.distributed has the backend "nccl" alone; allowed: one for CPU tensors beside it; '
            'fix: init_process_group("cpu:gloo,cuda:nccl"), or leave it out: it is done here'
        )
    elif found := disagreement(comm.gather(place)):
        raise UserError(found)
    return comm


def _join(world: World, place: Place) -> None:
    """Makes the process group, once all ranks have said that their devices are of one kind."""
    store, rank, size = next(dist.rendezvous("env://", world.rank, world.world_size, timeout=COLLECTIVE_TIMEOUT))
    store.set_timeout(COLLECTIVE_TIMEOUT)
    agree(store, size, place)
    backends = BACKENDS[place.device.partition(":")[0]]
    dist.init_process_group(backends, store=store, rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT)


def _warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def joined(world: World) -> Iterator[Communicator]:
    """The communicator of all ranks. The process group ends with the block, unless an error leaves it."""
    yield enter(world)
    # Not in a `finally`: leaving the group in order needs peers that are still there, and after an error they are not.
    if world.distributed:
        dist.destroy_process_group()
