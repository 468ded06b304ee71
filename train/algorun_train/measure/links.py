"""Measures the links between hosts with the job's own backend: NCCL for GPUs, Gloo for CPUs. One rank of each host takes part."""

import datetime
import statistics
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from .verdict import MeasuredLink

SMALL = 8  # bytes of a message whose way there and back is timed
FIRST = 2**20  # bytes of the first large message
LEAST, MOST = 2**16, 2**28  # bytes of the others
TRIPS, TIMES = 20, 5
LONGEST_S = 0.2  # of a large message


class NoAnswer(Exception):
    """A link between two hosts gave no answer in time. The text names both."""


class Links:
    """Links between `hosts`, by one rank of each: `ranks`, in the same order. Make it on all ranks of the job.

    `deadline_s`: a message that takes longer ends in NoAnswer, on both sides.
    """

    def __init__(
        self, hosts: Sequence[str], ranks: Sequence[int], rank: int, device: torch.device, deadline_s: float
    ) -> None:
        self._hosts, self._ranks, self._device = hosts, ranks, device
        self._own = ranks.index(rank) if rank in ranks else None
        self._group = (
            dist.new_group(list(ranks), timeout=datetime.timedelta(seconds=deadline_s)) if len(hosts) > 1 else None
        )

    def measure(self, seconds: float) -> dict[tuple[int, int], MeasuredLink]:
        """All links that this rank's host has and measured, by the hosts' numbers; about `seconds` for all rounds together."""
        found: dict[tuple[int, int], MeasuredLink] = {}
        every = rounds(len(self._hosts))
        for pairs in every:
            found |= self.measure_round(pairs, seconds / len(every))
        return found

    def measure_round(self, pairs: Sequence[tuple[int, int]], seconds: float) -> dict[tuple[int, int], MeasuredLink]:
        """The links of one round, side by side. Call it on all ranks that take part."""
        if self._own is None or self._group is None:
            return {}
        other = partner(pairs, self._own)
        found = {}
        if other is not None:
            found[min(self._own, other), max(self._own, other)] = self._link(other, seconds)
        self._meet()
        return found

    def ring(self, seconds: float) -> float:
        """Bytes a second that each host's link carries in an all-reduce of all hosts; 0.0 with one host."""
        if self._own is None or self._group is None:
            return 0.0
        numbers = torch.ones(FIRST // 4, device=self._device)
        slowest = torch.tensor([self._reduce(numbers)], device=self._device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=self._group)  # then all choose the same size
        numbers = torch.ones(_size(slowest.item(), seconds / TIMES) // 4, device=self._device)
        taken = statistics.median(self._reduce(numbers) for _ in range(TIMES))
        count = len(self._hosts)
        return 2 * (count - 1) / count * numbers.numel() * 4 / taken

    def _link(self, other: int, seconds: float) -> MeasuredLink:
        self._swap(other, SMALL)  # connects
        trips = [self._swap(other, SMALL) for _ in range(TRIPS)]
        own = torch.tensor([_size(self._swap(other, FIRST), seconds / TIMES)], device=self._device)
        theirs = torch.empty_like(own)
        self._exchange(other, own, theirs)
        size = int(min(own, theirs))  # equal on both sides
        taken = min(self._swap(other, size) for _ in range(TIMES))
        return MeasuredLink(size / taken, min(trips))

    def _swap(self, other: int, size: int) -> float:
        """The seconds in which both sides have sent and received `size` bytes."""
        mine, theirs = (torch.empty(size, dtype=torch.uint8, device=self._device) for _ in range(2))
        self._wait_for_device()
        begun = time.perf_counter()
        self._exchange(other, mine, theirs)
        return time.perf_counter() - begun

    def _exchange(self, other: int, mine: torch.Tensor, theirs: torch.Tensor) -> None:
        peer = self._ranks[other]
        try:
            sends = [
                dist.P2POp(dist.isend, mine, peer, self._group),
                dist.P2POp(dist.irecv, theirs, peer, self._group),
            ]
            for work in dist.batch_isend_irecv(sends):
                work.wait()
            self._wait_for_device()
        except RuntimeError as error:
            raise self._no_answer([other], error) from error

    def _reduce(self, numbers: torch.Tensor) -> float:
        self._meet()
        begun = time.perf_counter()
        dist.all_reduce(numbers, group=self._group)
        self._wait_for_device()
        return time.perf_counter() - begun

    def _meet(self) -> None:
        here = torch.zeros(1, device=self._device)
        try:
            dist.all_reduce(here, group=self._group)
            self._wait_for_device()
        except RuntimeError as error:
            raise self._no_answer(range(len(self._hosts)), error) from error

    def _wait_for_device(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _no_answer(self, others: Sequence[int], error: Exception) -> NoAnswer:
        assert self._own is not None
        names = ", ".join(self._hosts[other] for other in others if other != self._own)
        first = next(iter(str(error).splitlines()), type(error).__name__)
        return NoAnswer(f"link {self._hosts[self._own]} - {names}: {first}")


def _size(first_s: float, slot_s: float) -> int:
    """Bytes of a message that takes `slot_s`, if FIRST bytes took `first_s`; a multiple of 8."""
    wanted = FIRST * min(slot_s, LONGEST_S) / max(first_s, 1e-9)
    return int(min(max(wanted, LEAST), MOST)) // 8 * 8


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """All pairs of `count` hosts in rounds, in each of which a host has one partner at most (the circle method).

    An even count takes count - 1 rounds, an odd one count: in each round one host rests.
    """
    seats: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append(sorted((min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def partner(pairs: Sequence[tuple[int, int]], host: int) -> int | None:
    """Whom `host` measures with in a round; None: it rests."""
    return next((b if a == host else a for a, b in pairs if host in (a, b)), None)
