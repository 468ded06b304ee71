"""Messages between ranks by MPI (mpi4py). Every wait has a deadline."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from algorun_train.common.errors import UserError

from .rank_group import LIMIT_S, Array, RankGroup

SPIN = 200  # polls before a wait begins to sleep
NAP_S = 5e-5
LAST_WORDS_S = 1.0  # for the other ranks, which often have the same error, to write it before they are ended
# Each launcher of MPI processes sets one of them. Without any, this is a single process, and MPI is not started.
STARTED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")
Mpi = Any  # mpi4py is imported only in jobs that have ranks


@dataclass(slots=True)
class MpiRanks(RankGroup):
    """Ranks that mpirun has started."""

    comm: Mpi
    _sent: list[tuple[Mpi, str]] = field(default_factory=list)

    def post(self, value: object, to: int, tag: int, what: str) -> None:
        """See RankGroup."""
        self._sent.append((self.comm.isend(value, dest=to, tag=tag), what))

    def receive(self, source: int, tag: int, what: str) -> Any:  # whatever the other rank has sent
        """See RankGroup."""
        found: list[Mpi] = []

        def arrived() -> bool:
            message = self.comm.improbe(source=source, tag=tag)
            if message is not None:
                found.append(message)
            return bool(found)

        _wait(arrived, f"{what} of rank {source}")
        return found[0].recv()

    def all_sent(self) -> None:
        """See RankGroup."""
        for request, what in self._sent:
            _wait(lambda request=request: bool(request.test()[0]), f"a rank to take {what}")  # type: ignore[misc]
        self._sent.clear()

    def reduce(self, array: Array, what: str, kind: str = "SUM") -> Array:
        """See RankGroup."""
        import numpy as np

        if self.size == 1:
            return array
        from mpi4py import MPI

        total = np.empty_like(array)
        request = self.comm.Iallreduce(np.ascontiguousarray(array), total, op=getattr(MPI, kind))
        _wait(lambda: bool(request.Test()), what)
        return total

    def part(self, color: int, key: int, group: str) -> MpiRanks:
        """See RankGroup."""
        if self.size == 1:
            return MpiRanks(0, 1, "the job", None)
        comm = self.comm.Split(color, key)
        return MpiRanks(comm.Get_rank(), comm.Get_size(), group, comm)

    def on_host(self) -> tuple[int, int]:
        """See RankGroup."""
        if self.size == 1:
            return 0, 1
        from mpi4py import MPI

        comm = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        return comm.Get_rank(), comm.Get_size()

    def _copied(self, data: Array, what: str, root: int) -> None:
        request = self.comm.Ibcast(data, root=root)
        _wait(lambda: bool(request.Test()), what)

    def _gathered(self, data: bytes, what: str) -> list[bytes]:
        rows = bytearray(len(data) * self.size)
        request = self.comm.Iallgather(bytearray(data), rows)
        _wait(lambda: bool(request.Test()), f"the other ranks in {what}")
        return [bytes(rows[at : at + len(data)]) for at in range(0, len(rows), len(data))]


def are_started() -> bool:
    """Whether mpirun, or another launcher of MPI processes, has started this one."""
    return any(name in os.environ for name in STARTED)


def join(name: str) -> MpiRanks:
    """All ranks of the job: those of mpirun, or this process alone. On all of them; `name` is the script's call, for errors.

    Each call gives a group of its own, whose messages do not meet those of others. UserError for ranks that another launcher
    has started.
    """
    count = int(os.environ.get("WORLD_SIZE") or 1)
    size = 1
    if are_started():
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise UserError(
                f"{name}: mpi4py cannot be imported ({error}); allowed: an image with mpi4py and Open MPI; fix: add mpi4py to "
                "requirements.txt"
            ) from None
        size = MPI.COMM_WORLD.Get_size()
    if count not in (1, size):
        raise UserError(
            f"{name}: WORLD_SIZE is {count}, but MPI has {size} rank{'' if size == 1 else 's'}; allowed: ranks that mpirun has "
            'started; fix: distribution={"mpi": {"enabled": True, ..}} beside "smdistributed", or algorun --engine mpirun'
        )
    if size == 1:
        return MpiRanks(0, 1, "the job", None)
    _end_well()
    return MpiRanks(MPI.COMM_WORLD.Get_rank(), size, "the job", MPI.COMM_WORLD.Dup())


def _wait(done: Callable[[], bool], what: str) -> None:
    """Waits until `done()`. Raises RuntimeError at the limit."""
    deadline = time.monotonic() + LIMIT_S
    polls = 0
    while not done():
        polls += 1
        if polls > SPIN:
            time.sleep(NAP_S)
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"waited for {what} for {LIMIT_S:.0f} s; the other rank has ended, or is in another call"
                )


@functools.cache  # once in a process
def _end_well() -> None:
    """How the ranks end: without waiting for ranks that wait for this one, after an error too, which MPI by itself would do."""
    from mpi4py import MPI

    # mpi4py would do it when the interpreter is gone, and then TensorFlow's threads let it wait for ever (tensorflow 2.21).
    atexit.register(MPI.Finalize)
    before = sys.excepthook

    def report_and_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(LAST_WORDS_S)
        MPI.COMM_WORLD.Abort(1)

    sys.excepthook = report_and_end
