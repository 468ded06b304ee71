"""The other ranks, through the library that the script has already imported: torch.distributed, else mpi4py."""

from __future__ import annotations

import atexit
import datetime
import sys
from typing import Any

from . import gloo_threads

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
        self._device = "cpu"
        atexit.register(self._end)
        if dist.is_gloo_available():
            # A gloo group of our own neither synchronises the GPU nor waits for the script's collectives.
            self._group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        elif dist.get_backend() == "nccl":
            self._device = f"cuda:{torch.cuda.current_device()}"

    def _end(self) -> None:
        self.world = self._group = None  # a group with a reference to it keeps its threads
        end_gloo()

    def exchange(self, values: list[float]) -> list[list[float]]:
        mine = self._torch.tensor(values, dtype=self._torch.float64, device=self._device)
        rows = self._torch.empty(self._dist.get_world_size(), len(values), dtype=mine.dtype, device=self._device)
        self._dist.all_gather(list(rows.unbind()), mine, group=self._group)
        found: list[list[float]] = rows.tolist()
        return found


class MpiPeers:
    """The ranks of mpi4py's COMM_WORLD. A communicator of our own cannot receive the script's messages."""

    def __init__(self, world: Any) -> None:  # mpi4py's Comm, see above
        self.world, self._own = world, world.Dup()

    def exchange(self, values: list[float]) -> list[list[float]]:
        rows: list[list[float]] = self._own.allgather(values)
        return rows


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
