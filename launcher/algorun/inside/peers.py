"""The other ranks, through the library that the script has already imported: torch.distributed, else mpi4py."""

from __future__ import annotations

import array
import atexit
import datetime
import sys
from typing import Any

from . import gloo_threads
from .dissemination import TAG, Dissemination

# Longer than any pause between two steps: rank 0 may evaluate for hours while the others wait. A lost rank is noticed by
# the script's own collectives.
TIMEOUT = datetime.timedelta(days=1)


def end_gloo() -> None:
    """Destroys the process group at the interpreter's exit, if it uses no GPU.

    gloo_threads.py says why: 9 of 240 finished ranks aborted without this call, 0 of 80 with it. Under algorun rank_shim
    does the same in every rank.
    """
    torch, dist = sys.modules.get("torch"), sys.modules.get("torch.distributed")
    if torch is None or dist is None or not dist.is_initialized():
        return
    if dist.get_backend() == "gloo" or not torch.cuda.is_initialized():
        dist.destroy_process_group()
        gloo_threads.let_rest()


class TorchPeers:
    """The ranks of torch.distributed. Create it on all ranks at the same step: creating its group is a collective."""

    def __init__(self, world: Any) -> None:  # torch's ProcessGroup; the launcher knows no type of torch
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        self.world: Any = world  # as above
        self._group: Any = world  # as above
        self.rank: int = dist.get_rank()
        self.size: int = dist.get_world_size()
        self._device = ""  # without messages between CPUs: where a collective takes its numbers from
        atexit.register(self._end)
        if dist.is_gloo_available():
            # A gloo group of our own neither synchronises the GPU nor waits for the script's collectives.
            self._group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        elif dist.get_backend() == "nccl":
            self._device = f"cuda:{torch.cuda.current_device()}"
        else:
            self._device = "cpu"

    def _end(self) -> None:
        self.world = self._group = None  # a group with a reference to it keeps its threads
        end_gloo()

    def largest(self, values: list[float]) -> list[float]:
        """The largest of all ranks' values, element by element. Call it on all ranks."""
        if not self._device:
            return Dissemination(self).largest(values)
        mine = self._torch.tensor(values, dtype=self._torch.float64, device=self._device)
        self._dist.all_reduce(mine, self._dist.ReduceOp.MAX, group=self._group)
        found: list[float] = mine.tolist()
        return found

    def swap(self, values: list[float], to: int, source: int) -> list[float]:
        """Sends `values` to rank `to`; returns those that rank `source` sends here in the same call."""
        mine = self._torch.tensor(values, dtype=self._torch.float64)
        arrived = self._torch.empty_like(mine)
        sending = self._dist.isend(mine, group=self._group, tag=TAG, group_dst=to)
        self._dist.recv(arrived, group=self._group, tag=TAG, group_src=source)
        if sending is not None:
            sending.wait()
        found: list[float] = arrived.tolist()
        return found


class MpiPeers:
    """The ranks of mpi4py's COMM_WORLD. A communicator of our own cannot receive the script's messages."""

    def __init__(self, world: Any) -> None:  # mpi4py's Comm, see above
        self.world, self._own = world, world.Dup()
        self.rank: int = world.Get_rank()

    def largest(self, values: list[float]) -> list[float]:
        """The largest of all ranks' values, element by element. Call it on all ranks."""
        mpi, numbers = sys.modules["mpi4py.MPI"], array.array("d", values)
        self._own.Allreduce(mpi.IN_PLACE, numbers, mpi.MAX)
        return numbers.tolist()


def find(current: TorchPeers | MpiPeers | None) -> TorchPeers | MpiPeers | None:
    """All ranks, this process included; None if there is only this one. Returns `current` as long as it is valid."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        world = dist.group.WORLD
        if isinstance(current, TorchPeers) and current.world is world:
            return current
        return TorchPeers(world) if dist.get_world_size() > 1 else None
    if isinstance(current, MpiPeers):
        return current
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.Get_size() > 1:
        return MpiPeers(mpi.COMM_WORLD)
    return None
