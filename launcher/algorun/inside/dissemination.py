"""The largest of all ranks' values in few messages, by dissemination (Hensgen, Finkel and Manber 1988): with 256 ranks each sends
and receives 8 messages, one after the other. Gloo's own collectives go round a ring, 255 messages after each other."""

from __future__ import annotations

from typing import Protocol

TAG = 7_203  # of these messages between two ranks of a torch group that a script may use as well


class Swapping(Protocol):
    """All ranks of a job, this one included, which send each other numbers."""

    rank: int
    size: int

    def swap(self, values: list[float], to: int, source: int) -> list[float]:
        """Sends `values` to rank `to`; returns those that rank `source` sends here in the same call."""
        ...


class Dissemination:
    """The ranks as `Agreement` needs them."""

    def __init__(self, ranks: Swapping) -> None:
        self._ranks = ranks
        self.rank = ranks.rank

    def largest(self, values: list[float]) -> list[float]:
        """The largest of all ranks' values, element by element: the same on all ranks. Call it on all ranks, with the same number
        of values. Raises what `swap` raises if a rank does not come."""
        for to, source in partners(self.rank, self._ranks.size):
            arrived = self._ranks.swap(values, to, source)
            values = [max(pair) for pair in zip(values, arrived, strict=True)]
        return values


def partners(rank: int, size: int) -> list[tuple[int, int]]:
    """For each round the rank to send to and the one to receive from. In round k they are 2^k away, so that after it a rank
    knows of 2^(k + 1) ranks: itself and those before it. [] for one rank."""
    distances = [1 << k for k in range((size - 1).bit_length())]
    return [((rank + distance) % size, (rank - distance) % size) for distance in distances]
