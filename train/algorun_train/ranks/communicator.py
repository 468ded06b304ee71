"""The communicator of a job: the few collectives that are not gradients, for values, bytes and shared work."""

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
    """The ranks, joined. With one process and no group every collective returns its own input."""

    def __init__(self, world: World, device: torch.device) -> None:
        self.world, self.device = world, device
        self.rank, self.size = world.rank, world.world_size
        self.is_leader = world.rank == 0

    def say(self, text: object) -> None:
        """Prints on rank 0."""
        if self.is_leader:
            print(text, flush=True)

    def exchange(self, values: list[float]) -> list[list[float]]:
        """Row r holds rank r's `values` (float64). Runs on the CPU: a GPU's queue of work is not waited for."""
        if not self.world.distributed:
            return [values]
        mine = torch.tensor(values, dtype=torch.float64)
        rows = torch.empty(self.size, len(values), dtype=torch.float64)
        dist.all_gather(list(rows.unbind()), mine)
        return rows.tolist()

    def from_leader(self, work: Callable[[], T], limit: datetime.timedelta | None = None) -> T:
        """Rank 0 does the work, as in `from_rank`."""
        return self.from_rank(0, work, limit)

    def from_rank(self, source: int, work: Callable[[], T], limit: datetime.timedelta | None = None) -> T:
        """One rank does the work and all get its result, or all raise its UserError; another error ends all.

        All ranks meet first, within COLLECTIVE_TIMEOUT. Then the others wait for the result, for up to `limit`, by default
        COLLECTIVE_TIMEOUT; if rank `source` dies, they fail at once.
        """
        if not self.world.distributed:
            return work()
        if limit:  # a rank that never comes must not be waited for as long: making a group would
            self.exchange([0.0])
        # The time limit is that of a process group.
        group = dist.new_group(backend="gloo", timeout=limit) if limit else None
        outcome: list[Any] = [None, None, None]
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
        return outcome[0]

    def on_all(self, work: Callable[[], T]) -> T:
        """Every rank does its share; when any raises a UserError, all raise the one of the lowest such rank."""
        result, message = None, None
        try:
            result = work()
        except UserError as error:
            message = str(error)
        if first := next((text for text in self.gather(message) if text is not None), None):
            raise UserError(first)
        return result  # type: ignore[return-value]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's `value` on every rank, by rank."""
        if not self.world.distributed:
            return [value]
        payload = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = [int(row[0]) for row in self.exchange([float(len(payload))])]
        return [pickle.loads(part.numpy().tobytes()) for part in self.gather_bytes(payload, sizes)]

    def gather_bytes(self, mine: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
        """Every rank's flat uint8 CPU tensor, by rank; `sizes` holds their lengths."""
        if not self.world.distributed:
            return [mine]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return [part[:size] for part, size in zip(parts, sizes, strict=True)]

    def bytes_from_leader(self, data: bytes | None) -> bytes | None:
        """Rank 0's bytes on every rank; None stays None."""
        if not self.world.distributed:
            return data
        size = int(self.exchange([-1.0 if data is None else float(len(data))])[0][0])
        if size < 0:
            return None
        whole = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(size, dtype=torch.uint8)
        self.broadcast(whole, 0)
        return data if data is not None else whole.numpy().tobytes()

    def broadcast(self, flat: torch.Tensor, source: int) -> None:
        """Fills the flat uint8 CPU tensor of every rank with that of rank `source`."""
        if self.world.distributed:
            for begin in range(0, len(flat), CHUNK):
                dist.broadcast(flat[begin : begin + CHUNK], src=source)
