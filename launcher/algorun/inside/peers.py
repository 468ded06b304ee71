"""The other ranks, found in what the script has already loaded: torch.distributed, else mpi4py."""

from __future__ import annotations

import atexit
import datetime
import sys
from typing import Any

# The script's own collectives tell when a rank has gone. This group must outlast what the script allows between two
# steps: rank 0 may evaluate for hours while the others wait.
TIMEOUT = datetime.timedelta(days=1)


def end_gloo() -> None:
    """Ends torch.distributed before the interpreter ends, where no GPU has a part in it.

    Gloo's thread (torch 2.10 to 2.13) may want the GIL while the interpreter ends, and then aborts the process (SIGABRT,
    "terminate called without an active exception"): 9 of 240 ranks that had done their work, 0 of 80 with this. Under
    algorun every rank has it (launcher/algorun/inside/rank_shim.py).
    """
    torch, dist = sys.modules.get("torch"), sys.modules.get("torch.distributed")
    if torch is None or dist is None or not dist.is_initialized():
        return
    if dist.get_backend() == "gloo" or not torch.cuda.is_initialized():
        dist.destroy_process_group()


class TorchPeers:
    """The ranks of torch.distributed. All of them make it at the same step: its group is a collective to make."""

    def __init__(self, world: Any) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        self.world: Any = world
        self._group: Any = world
        self._device = "cpu"
        atexit.register(self._end)
        if dist.is_gloo_available():
            # No GPU is synchronised, and no collective of the script's that is under way is waited for.
            self._group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        elif dist.get_backend() == "nccl":
            self._device = f"cuda:{torch.cuda.current_device()}"

    def _end(self) -> None:
        self.world = self._group = None  # a group that anybody holds keeps its threads
        end_gloo()

    def exchange(self, values: list[float]) -> list[list[float]]:
        mine = self._torch.tensor(values, dtype=self._torch.float64, device=self._device)
        rows = self._torch.empty(self._dist.get_world_size(), len(values), dtype=mine.dtype, device=self._device)
        self._dist.all_gather(list(rows.unbind()), mine, group=self._group)
        found: list[list[float]] = rows.tolist()
        return found


class MpiPeers:
    """The ranks of mpi4py's COMM_WORLD, in a communicator of their own: no message of the script's is taken."""

    def __init__(self, world: Any) -> None:
        self.world, self._own = world, world.Dup()

    def exchange(self, values: list[float]) -> list[list[float]]:
        rows: list[list[float]] = self._own.allgather(values)
        return rows


def find(current: TorchPeers | MpiPeers | None) -> TorchPeers | MpiPeers | None:
    """The ranks that this process is one of, None where it is alone; `current` as long as they are the same."""
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
