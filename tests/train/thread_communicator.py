"""Ranks as threads of one process: a communicator's collectives without processes, for tests that need hundreds of jobs."""

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from algorun_train.common.errors import UserError
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.world import World

LIMIT_S = 60


class Meeting:
    def __init__(self, size: int) -> None:
        self.rows: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=LIMIT_S)


class ThreadCommunicator(Communicator):
    """A communicator of threads: objects are pickled on their way, as they are between processes."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        super().__init__(World(rank, len(meeting.rows), rank, len(meeting.rows), True), torch.device("cpu"))
        self._meeting = meeting

    def gather(self, value: Any) -> list[Any]:
        meeting = self._meeting
        meeting.rows[self.rank] = pickle.dumps(value)
        meeting.barrier.wait()
        rows = [pickle.loads(row) for row in meeting.rows]
        meeting.barrier.wait()
        return rows

    def gather_bytes(self, mine: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
        assert len(mine) == sizes[self.rank]
        return self.gather(mine)

    def exchange(self, values: list[float]) -> list[list[float]]:
        return self.gather(values)

    def swap(self, values: list[float], to: int, source: int) -> list[float]:
        sent = self.gather((values, to))
        assert sent[source][1] == self.rank
        return sent[source][0]

    def from_rank(self, source: int, work: Callable[[], Any], limit: Any = None) -> Any:
        result, message = None, None
        if self.rank == source:
            try:
                result = work()
            except UserError as error:
                message = str(error)
        result, message = self.gather((result, message))[source]
        if message is not None:
            raise UserError(message)
        return result

    def broadcast(self, flat: torch.Tensor, source: int) -> None:
        flat.copy_(self.gather(flat if self.rank == source else None)[source])


def as_ranks(size: int, work: Callable[[Communicator], Any]) -> list[Any]:
    """What `work` returns on each of `size` ranks."""
    meeting = Meeting(size)

    def run(rank: int) -> Any:
        try:
            return work(ThreadCommunicator(meeting, rank))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        running = [pool.submit(run, rank) for rank in range(size)]
        errors = [future.exception() for future in running]
        first = next((e for e in errors if e and not isinstance(e, threading.BrokenBarrierError)), None)
        if first:
            raise first
        return [future.result() for future in running]
