"""Messages between ranks by torch's Gloo: for TensorFlow scripts whose ranks mpirun has not started."""

from __future__ import annotations

import atexit
import datetime
import os
import pickle
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from algorun_train.ranks.join import end_gloo
from algorun_train.ranks.world import read_world

from .rank_group import LIMIT_S, Array, RankGroup

TIMEOUT = datetime.timedelta(seconds=LIMIT_S)
ADDED = {
    np.dtype(name) for name in ("uint8", "int8", "int32", "int64", "float32", "float64")
}  # types that Gloo reduces
OPERATIONS = {"SUM": np.add, "MIN": np.minimum, "MAX": np.maximum}


@dataclass(slots=True)
class GlooRanks(RankGroup):
    """The ranks of a launcher that gives torchrun's variables."""

    host: tuple[int, int]
    """this rank's number among those of the group on its host, and their number"""
    gloo: dist.ProcessGroup | None
    """None for a group of one rank"""
    _sent: list[tuple[Any, str]] = field(default_factory=list)

    def post(self, value: object, to: int, tag: int, what: str) -> None:
        """See RankGroup."""
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        for part, number in ((torch.tensor([data.numel()]), 2 * tag), (data, 2 * tag + 1)):
            self._sent.append((dist.isend(part, group=self.gloo, tag=number, group_dst=to), what))

    def receive(self, source: int, tag: int, what: str) -> Any:  # whatever the other rank has sent
        """See RankGroup."""
        what = f"{what} of rank {source}"
        length = torch.empty(1, dtype=torch.int64)
        _wait(dist.irecv(length, group=self.gloo, tag=2 * tag, group_src=source), what)
        data = torch.empty(int(length), dtype=torch.uint8)
        _wait(dist.irecv(data, group=self.gloo, tag=2 * tag + 1, group_src=source), what)
        return pickle.loads(data.numpy().data)

    def all_sent(self) -> None:
        """See RankGroup."""
        for work, what in self._sent:
            _wait(work, f"a rank to take {what}")
        self._sent.clear()

    def part(self, color: int, key: int, group: str) -> GlooRanks:
        """See RankGroup."""
        own = self.rank - self.host[0]  # the first rank of this host
        rows = self.gathered((color, key, self.rank, own), f"the parts of {self.group}")
        for each in sorted({row[0] for row in rows}):  # every rank makes every group
            found = sorted(row for row in rows if row[0] == each)
            ranks = [rank for _, _, rank, _ in found]
            gloo = dist.new_group(ranks, timeout=TIMEOUT, backend="gloo") if len(ranks) > 1 else None
            if each == color:
                here = [rank for _, _, rank, host in found if host == own]
                on_host = here.index(self.rank), len(here)
                mine = GlooRanks(ranks.index(self.rank), len(ranks), group, on_host, gloo)
        return mine

    def reduce(self, array: Array, what: str, kind: str = "SUM") -> Array:
        """See RankGroup."""
        if not array.size or self.size == 1:
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
        return self.host

    def _gathered(self, data: bytes, what: str) -> list[bytes]:
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        _wait(dist.all_gather(rows, mine, self.gloo, async_op=True), f"the other ranks in {what}")
        return [row.numpy().tobytes() for row in rows]

    def _copied(self, data: Array, what: str, root: int) -> None:
        _wait(dist.broadcast(torch.from_numpy(data), group=self.gloo, async_op=True, group_src=root), what)


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
    return GlooRanks(world.rank, world.world_size, "the job", (world.local_rank, world.local_world_size), gloo)


def _wait(work: Any, what: str) -> None:  # torch's Work has no types
    """Waits until it is done. Raises RuntimeError if that fails, or at the limit."""
    try:
        work.wait(TIMEOUT)
    except RuntimeError as error:
        raise RuntimeError(f"waited for {what}: {error}; the other rank has ended, or is in another call") from error
