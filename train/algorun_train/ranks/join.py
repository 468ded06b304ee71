"""Joins this process to the other ranks: finds its device, answers the roll call, makes the process group."""

import atexit
import contextlib
import datetime
import os
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist

from algorun.inside import gloo_threads
from algorun_train.common.errors import UserError

from . import devices
from .communicator import Communicator
from .roll_call import RankAnswer, agree, disagreement, host_name, one_gpu_each
from .world import World

# Longer than any normal pause between two collectives, such as compiling the first step or saving to slow storage. Short
# enough that ranks without a launcher notice a lost peer.
COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=15)
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}  # of the process group, by the ranks' kind of device


def enter(world: World) -> Communicator:
    """Joins the ranks, or uses torch's process group if it exists. Call it on all ranks.

    One group carries CPU tensors with Gloo and GPU tensors with NCCL. Raises UserError, the same on all ranks, if a rank
    cannot use its GPU, if the ranks' devices differ, or if an existing group has no backend for CPU tensors.
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
    place = RankAnswer(world.rank, host_name(), str(device), gpu, error)
    if not dist.is_initialized():
        _join(world, place)
        # Gloo connects ranks pair by pair, and torch has no barrier behind that: a rank that left now, be it by an error,
        # would break the connections of ranks that still connect to it, and with rank 0 the store would go.
        comm.meet()
    elif dist.get_backend() == "nccl":
        raise UserError(
            'torch.distributed has the backend "nccl" alone; allowed: one for CPU tensors beside it; '
            'fix: init_process_group("cpu:gloo,cuda:nccl"), or leave it out: it is done here'
        )
    elif found := disagreement(comm.gather(place)):
        raise UserError(found)
    return comm


def _join(world: World, place: RankAnswer) -> None:
    """Makes the process group after the roll call: all ranks have devices of one kind."""
    store, rank, size = next(dist.rendezvous("env://", world.rank, world.world_size, timeout=COLLECTIVE_TIMEOUT))
    store.set_timeout(COLLECTIVE_TIMEOUT)
    agree(store, size, place)
    backends = BACKENDS[place.device.partition(":")[0]]
    dist.init_process_group(backends, store=store, rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT)
    atexit.register(end_gloo)  # a script may leave without ending the group


def end_gloo() -> None:
    """Ends a process group without GPUs before the interpreter exits: gloo_threads.py says why. Never raises."""
    with contextlib.suppress(Exception):
        if dist.is_initialized() and not torch.cuda.is_initialized():
            dist.destroy_process_group()
        gloo_threads.let_rest()


def _warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def joined(world: World) -> Iterator[Communicator]:
    """The communicator of all ranks. The process group ends with the block, unless an error leaves it."""
    yield enter(world)
    # Not in a `finally`: destroying the group needs all peers, and after an error some may have ended.
    if world.distributed:
        dist.destroy_process_group()
        gloo_threads.let_rest()
