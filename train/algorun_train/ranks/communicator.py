"""The communicator of a job: collectives for small values, bytes and work that one rank does for all.

Gradients and activations take other ways: DistributedDataParallel, and the groups of a pipeline.
"""

import datetime
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from algorun_train.errors import UserError

from .world import World

T = TypeVar("T")
CHUNK = 64 * 2**20  # bytes per broadcast of a checkpoint: bounds the second copy that a rank holds


class Communicator:
    """All ranks of a job, joined; `device` is the one that this rank computes on. `join.enter` makes it.

    All collectives have to be called on all ranks, in the same order. They move CPU tensors, so that a GPU's queue of
    work is not waited for. Without a process group (one process, no launcher) each returns its own input. A rank that
    does not come within `join.COLLECTIVE_TIMEOUT` is a RuntimeError of torch's on the others.
    """

    def __init__(self, world: World, device: torch.device) -> None:
        self.world, self.device = world, device
        self.rank, self.size = world.rank, world.world_size
        self.is_leader = world.rank == 0

    def say(self, text: object) -> None:
        """Prints on rank 0. May be called on any rank; no collective."""
        if self.is_leader:
            print(text, flush=True)

    def exchange(self, values: list[float]) -> list[list[float]]:
        """Every rank's `values`: row r holds those of rank r, as float64. All ranks give equally many."""
        if not self.world.distributed:
            return [values]
        mine = torch.tensor(values, dtype=torch.float64)
        rows = torch.empty(self.size, len(values), dtype=torch.float64)
        dist.all_gather(list(rows.unbind()), mine)
        return rows.tolist()

    def from_leader(self, work: Callable[[], T], limit: datetime.timedelta | None = None) -> T:
        """`from_rank`, with rank 0 as the one that works."""
        return self.from_rank(0, work, limit)

    def from_rank(self, source: int, work: Callable[[], T], limit: datetime.timedelta | None = None) -> T:
        """Runs `work` on rank `source` and returns its result, which has to be picklable, on all ranks.

        All ranks meet first, within COLLECTIVE_TIMEOUT. Then the others wait for the result, for up to `limit`, by default
        COLLECTIVE_TIMEOUT; if rank `source` dies, they fail at once.

        Raises:
            UserError: on all ranks, where `work` raises one.
            Exception: any other error of `work` on rank `source`, and a RuntimeError that names it on the others.
        """
        if not self.world.distributed:
            return work()
        if limit:  # a rank that never comes must not be waited for as long: making a group would
            self.exchange([0.0])
        # The time limit is that of a process group.
        group = dist.new_group(backend="gloo", timeout=limit) if limit else None
        outcome: list[Any] = [None, None, None]  # torch fills it: the result, a UserError's text, another error's text
        failure: Exception | None = None
        if self.rank == source:
            try:
                outcome[0] = work()
            except UserError as error:
                outcome[1] = str(error)
            except Exception as error:
                outcome[2], failure = f"{type(error).__name__}: {error}", error
        dist.broadcast_object_list(outcome, src=source, group=group, device=torch.device("cpu"))
        if group is not None:
            dist.destroy_process_group(group)
        if failure is not None:
            raise failure
        if outcome[1] is not None:
            raise UserError(outcome[1])
        if outcome[2] is not None:
            raise RuntimeError(f"rank {source} failed: {outcome[2]}")
        result: T = outcome[0]
        return result

    def on_all(self, work: Callable[[], T]) -> T:
        """Runs `work` on every rank and returns its result on that rank.

        Raises:
            UserError: on all ranks, where `work` raises one on any: that of the lowest such rank.
        """
        result: list[T] = []
        message = None
        try:
            result.append(work())
        except UserError as error:
            message = str(error)
        if first := next((text for text in self.gather(message) if text is not None), None):
            raise UserError(first)
        return result[0]

    def gather(self, value: T) -> list[T]:
        """Every rank's `value`, which has to be picklable, by rank."""
        if not self.world.distributed:
            return [value]
        payload = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = [int(row[0]) for row in self.exchange([float(len(payload))])]
        return [pickle.loads(pickled.numpy().tobytes()) for pickled in self.gather_bytes(payload, sizes)]

    def gather_bytes(self, mine: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
        """Every rank's tensor, by rank: uint8 `[sizes[rank]]`, on the CPU. `sizes` is the same on all ranks."""
        if not self.world.distributed:
            return [mine]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(mine)] = mine
        rows = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(rows, padded)
        return [row[:size] for row, size in zip(rows, sizes, strict=True)]

    def bytes_from_leader(self, data: bytes | None) -> bytes | None:
        """Rank 0's bytes, or its None, on every rank. The other ranks give None."""
        if not self.world.distributed:
            return data
        size = int(self.exchange([-1.0 if data is None else float(len(data))])[0][0])
        if size < 0:
            return None
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(size, dtype=torch.uint8)
        self.broadcast(flat, 0)
        return data if data is not None else flat.numpy().tobytes()

    def broadcast(self, flat: torch.Tensor, source: int) -> None:
        """Fills `flat` (uint8 `[bytes]`, on the CPU, equally long on all ranks) with that of rank `source`, in place."""
        if self.world.distributed:
            for begin in range(0, len(flat), CHUNK):
                dist.broadcast(flat[begin : begin + CHUNK], src=source)
