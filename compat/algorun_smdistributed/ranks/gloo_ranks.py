"""Messages between ranks by torch's Gloo: for TensorFlow scripts whose ranks mpirun has not started."""

from __future__ import annotations

import atexit
import datetime
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from algorun_train.ranks.join import end_gloo
from algorun_train.ranks.world import World, read_world

from .rank_group import LIMIT_S, Array, RankGroup

TIMEOUT = datetime.timedelta(seconds=LIMIT_S)
ADDED = {
    np.dtype(name) for name in ("uint8", "int8", "int32", "int64", "float32", "float64")
}  # types that Gloo reduces
OPERATIONS = {"SUM": np.add, "MIN": np.minimum, "MAX": np.maximum}


@dataclass(slots=True)
class GlooRanks(RankGroup):
    """The ranks of a launcher that gives torchrun's variables."""

    world: World
    gloo: dist.ProcessGroup

    def reduce(self, array: Array, what: str, kind: str = "SUM") -> Array:
        """See RankGroup."""
        if not array.size:
            return array
        if array.dtype in ADDED:
            total = np.array(array, order="C")
            _wait(
                dist.all_reduce(torch.from_numpy(total), getattr(dist.ReduceOp, kind), self.gloo, async_op=True), what
            )
            return total
        rows = self._gathered(np.ascontiguousarray(array).tobytes(), what)
        arrays = [np.frombuffer(row, array.dtype).reshape(array.shape) for row in rows]
        return OPERATIONS[kind].reduce(arrays)

    def on_host(self) -> tuple[int, int]:
        """See RankGroup."""
        return self.world.local_rank, self.world.local_world_size

    def _gathered(self, data: bytes, what: str) -> list[bytes]:
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        _wait(dist.all_gather(rows, mine, self.gloo, async_op=True), f"the other ranks in {what}")
        return [row.numpy().tobytes() for row in rows]

    def _copied(self, data: Array, what: str, root: int) -> None:
        _wait(dist.broadcast(torch.from_numpy(data), root, self.gloo, async_op=True), what)


def join() -> GlooRanks:
    """All ranks of the job, as torchrun's variables name them. On all of them.

    Each call gives a group of its own, whose messages do not meet those of others. torch uses no GPU for it.
    UserError for variables that contradict each other.
    """
    world = read_world(os.environ)
    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=world.rank, world_size=world.world_size, timeout=TIMEOUT)
        atexit.register(end_gloo)
    gloo = dist.new_group(list(range(world.world_size)), timeout=TIMEOUT, backend="gloo")
    return GlooRanks(world.rank, world.world_size, "the job", world, gloo)


def _wait(work: Any, what: str) -> None:  # torch's Work has no types
    """Waits until it is done. Raises RuntimeError if that fails, or at the limit."""
    try:
        work.wait(TIMEOUT)
    except RuntimeError as error:
        raise RuntimeError(f"waited for {what}: {error}; the other rank has ended, or is in another call") from error
