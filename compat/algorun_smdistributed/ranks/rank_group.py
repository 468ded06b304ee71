"""Ranks of a TensorFlow script that talk with each other, whatever carries their messages."""

from __future__ import annotations

import hashlib
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from algorun_train.common.errors import UserError

LIMIT_S = 900.0  # of every wait: as long as the collectives of torch's ranks wait
LENGTH = 8  # bytes of a length
DIGEST = 16  # bytes of a hash
MOST = 1 << 30  # bytes of one broadcast: MPI counts them in 31 bits
NAME = 300  # bytes of a call's name
Array = Any  # NumPy's, of any type
T = TypeVar("T")


@dataclass(slots=True)
class RankGroup(ABC):
    """All ranks of the job, or those of one pipeline. `rank` and `size` are in the group."""

    rank: int
    size: int
    group: str
    """what the ranks have in common, for errors"""

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

    @abstractmethod
    def reduce(self, array: Array, what: str, kind: str = "SUM") -> Array:
        """The sum of every rank's array, of the same shape and type on all of them; or their "MIN" or "MAX"."""

    def copy(self, array: Array, what: str, root: int = 0) -> Array:
        """The array of rank `root` on every rank, of the same shape and type as this rank's `array`."""
        import numpy as np

        found = np.array(array, order="C")
        if self.size > 1:
            flat = found.reshape(-1).view(np.uint8)
            for at in range(0, flat.size, MOST):
                self._copied(flat[at : at + MOST], what, root)
        return found

    @abstractmethod
    def post(self, value: object, to: int, tag: int, what: str) -> None:
        """Starts to send `value`, any that pickle takes, to a rank; `all_sent` waits for it. `tag` is 0 or more."""

    @abstractmethod
    def receive(self, source: int, tag: int, what: str) -> Any:  # whatever the other rank has sent
        """What a rank has posted under this tag. Raises RuntimeError if nothing comes in time."""

    @abstractmethod
    def all_sent(self) -> None:
        """Waits until everything posted has left. Raises RuntimeError if a receiver does not take it in time."""

    @abstractmethod
    def part(self, color: int, key: int, group: str) -> RankGroup:
        """The group of all ranks that give the same color, in the order of their keys. On all ranks of the job's group."""

    @abstractmethod
    def on_host(self) -> tuple[int, int]:
        """This rank's number among those of its host, and their number."""

    @abstractmethod
    def _gathered(self, data: bytes, what: str) -> list[bytes]:
        """Every rank's `data`, of the same length on all of them, by rank."""

    @abstractmethod
    def _copied(self, data: Array, what: str, root: int) -> None:
        """Gives `data`, bytes of NumPy, the content that it has on rank `root`."""
