"""Messages between ranks by MPI (mpi4py). Every wait has a deadline."""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import pickle
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar, cast

from algorun_train.common.errors import UserError

LIMIT_S = 900.0  # as long as the collectives of torch's ranks wait
SPIN = 200  # polls before a wait begins to sleep
NAP_S = 5e-5
LAST_WORDS_S = 1.0  # for the other ranks, which often have the same error, to write it before they are ended
LENGTH = 8  # bytes of a length
DIGEST = 16  # bytes of a hash
MOST = 1 << 30  # bytes of one broadcast: MPI counts them in 31 bits
NAME = 300  # bytes of a call's name
# Each launcher of MPI processes sets one of them. Without any, this is a single process, and MPI is not started.
STARTED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")
Mpi = Any  # mpi4py is imported only in jobs that have ranks
T = TypeVar("T")


@dataclass(slots=True)
class MpiRanks:
    """Ranks that talk with each other: all ranks of the job, or those of one pipeline. `rank` and `size` are in the group."""

    comm: Mpi
    rank: int = 0
    size: int = 1
    group: str = "the job"
    """what the ranks have in common, for errors"""
    _sent: list[tuple[Mpi, str]] = field(default_factory=list)

    def together(self, what: str, data: bytes = b"") -> list[bytes]:
        """Every rank's `data`, by rank. On all ranks of the group, in the same call `what`.

        Raises UserError on all of them if they are in different calls, RuntimeError if a rank does not come in time.
        """
        if self.size == 1:
            return [data]
        name = what.encode()
        head = hashlib.blake2b(name, digest_size=DIGEST).digest() + len(data).to_bytes(LENGTH, "little")
        rows = self._gathered(head, what)
        if len({row[:DIGEST] for row in rows}) > 1:
            texts = [
                row.rstrip(b"\0").decode(errors="replace")
                for row in self._gathered(name[:NAME].ljust(NAME, b"\0"), what)
            ]
            calls = ", ".join(f"rank {rank} calls {text}" for rank, text in enumerate(texts))
            raise UserError(
                f"the ranks of {self.group} call different things: {calls}; allowed: the same on all of them, with batches of "
                "the same shape; fix: call it on every rank, with drop_remainder=True in .batch(..)"
            )
        lengths = [int.from_bytes(row[DIGEST:], "little") for row in rows]
        if not max(lengths):
            return [b""] * self.size
        padded = self._gathered(data.ljust(max(lengths), b"\0"), what)
        return [row[:length] for row, length in zip(padded, lengths, strict=True)]

    def gathered(self, value: T, what: str) -> list[T]:
        """Every rank's `value`, by rank; otherwise as `together`."""
        return [cast(T, pickle.loads(row)) for row in self.together(what, pickle.dumps(value))]

    def on_all(self, work: Callable[[], T], what: str) -> T:
        """What this rank's `work` returns. If it fails on one rank, all raise: UserError, or on that rank its own error."""
        try:
            result, error, broken = work(), "", None
        except UserError as failed:
            result, error, broken = None, str(failed), None
        except Exception as failed:  # the other ranks must not wait for this one
            result, error, broken = None, f"rank {self.rank} failed: {type(failed).__name__}: {failed}", failed
        texts = self.gathered(error, what)
        if broken is not None:
            raise broken
        if text := next(filter(None, texts), ""):
            raise UserError(text)
        return cast(T, result)

    def from_first(self, work: Callable[[], T], what: str) -> T:
        """What `work` returns on rank 0, which alone calls it, on every rank; errors as in `on_all`."""
        mine = self.on_all(work if self.rank == 0 else lambda: None, what)
        return cast(T, self.gathered(mine, what)[0])

    def post(self, value: object, to: int, tag: int, what: str) -> None:
        """Starts to send `value`, any that pickle takes, to a rank; `all_sent` waits for it."""
        self._sent.append((self.comm.isend(value, dest=to, tag=tag), what))

    def receive(self, source: int, tag: int, what: str) -> Any:  # whatever the other rank has sent
        """What a rank has posted under this tag. Raises RuntimeError if nothing comes in time."""
        found: list[Mpi] = []

        def arrived() -> bool:
            message = self.comm.improbe(source=source, tag=tag)
            if message is not None:
                found.append(message)
            return bool(found)

        _wait(arrived, f"{what} of rank {source}")
        return found[0].recv()

    def all_sent(self) -> None:
        """Waits until everything posted has left. Raises RuntimeError if a receiver does not take it in time."""
        for request, what in self._sent:
            _wait(lambda request=request: bool(request.test()[0]), f"a rank to take {what}")  # type: ignore[misc]
        self._sent.clear()

    def reduce(self, array: Any, what: str, kind: str = "SUM") -> Any:  # NumPy's arrays of any type
        """The sum of every rank's array, of the same shape and type on all of them; or their "MIN" or "MAX"."""
        import numpy as np

        if self.size == 1:
            return array
        from mpi4py import MPI

        total = np.empty_like(array)
        request = self.comm.Iallreduce(np.ascontiguousarray(array), total, op=getattr(MPI, kind))
        _wait(lambda: bool(request.Test()), what)
        return total

    def copy(self, array: Any, what: str, root: int = 0) -> Any:  # NumPy's arrays of any type
        """The array of rank `root` on every rank, of the same shape and type as this rank's `array`."""
        import numpy as np

        found = np.array(array)
        if self.size == 1:
            return found
        flat = found.reshape(-1).view(np.uint8)
        for at in range(0, flat.size, MOST):
            request = self.comm.Ibcast(flat[at : at + MOST], root=root)
            _wait(lambda request=request: bool(request.Test()), what)  # type: ignore[misc]
        return found

    def part(self, color: int, key: int, group: str) -> MpiRanks:
        """The group of all ranks that give the same color, in the order of their keys. On all ranks of this group."""
        if self.size == 1:
            return MpiRanks(None)
        comm = self.comm.Split(color, key)
        return MpiRanks(comm, comm.Get_rank(), comm.Get_size(), group)

    def on_host(self) -> tuple[int, int]:
        """This rank's number among those of its host, and their number."""
        if self.size == 1:
            return 0, 1
        from mpi4py import MPI

        comm = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        return comm.Get_rank(), comm.Get_size()

    def _gathered(self, data: bytes, what: str) -> list[bytes]:
        rows = bytearray(len(data) * self.size)
        request = self.comm.Iallgather(bytearray(data), rows)
        _wait(lambda: bool(request.Test()), f"the other ranks in {what}")
        return [bytes(rows[at : at + len(data)]) for at in range(0, len(rows), len(data))]


def join(name: str) -> MpiRanks:
    """All ranks of the job: those of mpirun, or this process alone. On all of them; `name` is the script's call, for errors.

    Each call gives a group of its own, whose messages do not meet those of others. UserError for ranks that another launcher
    has started.
    """
    count = int(os.environ.get("WORLD_SIZE") or 1)
    size = 1
    if any(name in os.environ for name in STARTED):
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
            'started; fix: distribution={"mpi": {"enabled": True, ..}}, for smdistributed.modelparallel beside "smdistributed", or '
            "algorun --engine mpirun"
        )
    if size == 1:
        return MpiRanks(None)
    _end_well()
    return MpiRanks(MPI.COMM_WORLD.Dup(), MPI.COMM_WORLD.Get_rank(), size)


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
