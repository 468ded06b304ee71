"""The exact search for a partition where each rank has one stage: the fastest within a memory limit, or the smallest.

A stage has successive segments, and its time is their sum. So sum t_s is the same for all partitions, and the step
sum t_s + (M - 1) max t_s is shortest where max t_s is smallest. The bytes of a stage depend on its number (early stages
have more microbatches in flight) and on both of its ends (receive buffers of the boundaries).
For given bounds on time and bytes, `ExactSearch` finds stage by stage the segments that the next stage can begin with.
Sliding minima make that O(segments) per stage; a binary search finds the smallest bound. All numbers are whole
(nanoseconds and bytes), so results are exact: 1,000 segments over 64 stages take about a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]
FAR = 2**61  # more than any time or number of bytes, and twice of it still an int64
ROOM = 2**60  # as good as no limit


@dataclass(frozen=True, slots=True)
class Loads:
    """Whole numbers, one item per segment."""

    time: Sequence[int]
    """forward and backward, in nanoseconds"""
    states: Sequence[int]
    """bytes of weights, gradients and moments"""
    saved: Sequence[int]
    """bytes saved for the backward pass, per microbatch"""
    entry: Sequence[int]
    """bytes of the receive buffers of a stage that begins with the segment, and of one that ends before it"""
    kept: Sequence[int] | None = None
    """with recomputation: a stage has `saved` once, and for each microbatch in flight `kept` of its first segment"""
    repeats: Sequence[tuple[int, int, int]] = ()
    """(segment, later segment, bytes): a stage with both has counted these bytes of `states` twice"""


class ExactSearch:
    """All partitions of `loads` in stages with these numbers of microbatches in flight."""

    def __init__(self, loads: Loads, in_flight: Sequence[int]) -> None:
        self.count, self.stages = len(loads.time), len(in_flight)
        self._time = _prefix(loads.time)
        self._entry = np.array([0, *loads.entry[1:], 0], dtype=np.int64)  # neither input nor output is received
        states, saved = _prefix(loads.states), _prefix(loads.saved)
        again = loads.kept is not None
        self._load = [states + (1 if again else many) * saved for many in in_flight]
        kept = np.array([0, *(loads.kept or [0] * self.count)[1:], 0], dtype=np.int64)
        self._enter = [self._entry + many * kept for many in in_flight]
        self._total = int(self._time[-1])
        places = np.arange(self.count + 1)
        repeats = sorted(loads.repeats)
        # A list of (begins, twice), one for each segment `one` that is the first of a repeat. `begins` are the places up to
        # `one`. `twice[end]` is the least that a stage from such a begin to `end` has counted twice. It is exact for a
        # begin after the previous `one`, so the largest over the list is exact for all.
        self._repeats: list[tuple[NDArray[np.bool_], Int]] = []
        for one in dict.fromkeys(first for first, _, _ in repeats):
            twice = np.zeros(self.count + 1, dtype=np.int64)
            for first, later, size in repeats:
                if first >= one:
                    twice += (places > later) * size
            self._repeats.append((places <= one, twice))

    def fits(self, time: int, size: int) -> bool:
        """Whether there is a partition with no stage above `time` nanoseconds and none above `size` bytes."""
        return self._begins(time, size) is not None

    def fastest(self, limit: int | None = None) -> tuple[int, ...] | None:
        """The begins of the stages whose slowest one is as fast as possible; None if no partition is within `limit` bytes."""
        size = ROOM if limit is None else limit
        if not self.fits(self._total, size):
            return None
        return self._smoothest(self._least_time(size), size)

    def smallest(self) -> tuple[int, ...] | None:
        """The begins of the stages whose largest one is as small as possible, and then the slowest as fast as possible."""
        if not self.fits(self._total, ROOM):
            return None
        most = max(int(load[-1] + enter.max()) for load, enter in zip(self._load, self._enter, strict=True))
        size = _least(0, most + int(self._entry.max()), lambda value: self.fits(self._total, value))
        return self._smoothest(self._least_time(size), size)

    def _least_time(self, size: int) -> int:
        longest = int(np.diff(self._time).max())
        low = max(longest, -(-self._total // self.stages))
        high = low + longest  # enough without a limit on bytes
        if not self.fits(high, size):
            low, high = high, self._total
        return _least(low, high, lambda value: self.fits(value, size))

    def _begins(self, time: int, size: int) -> list[Int] | None:
        """For each stage the segments that it can begin with; None if the last one cannot end with the last segment."""
        ends = np.arange(self.count + 1)
        if time >= self._total:  # a stage may begin anywhere before its end
            return self._layers(time, size, ends, lambda values: np.minimum.accumulate(np.append(FAR, values[:-1])))
        first = np.searchsorted(self._time, self._time - time)  # the earliest begin of a stage that ends at each place
        width = ends - first
        level = np.frexp(np.maximum(width, 1))[1] - 1  # floor(log2(width)), exactly
        second = ends - (1 << level)
        spans = level * (self.count + 1) + first, level * (self.count + 1) + np.maximum(second, 0)
        table = np.empty((int(level.max()) + 1, self.count + 1), dtype=np.int64)

        def lowest(values: Int) -> Int:
            _fill_minima(table, values)
            return np.where(width > 0, np.minimum(table.take(spans[0]), table.take(spans[1])), FAR)

        return self._layers(time, size, ends, lowest)

    def _twice(self, begins: Int, ends: Int) -> Int:
        """Bytes that a stage from each begin (row) to each end (column) has counted twice."""
        found = np.zeros((len(begins), len(ends)), dtype=np.int64)
        for until, twice in self._repeats:
            found = np.maximum(found, np.where(until[begins][:, None], twice[ends], 0))
        return found

    def _layers(self, time: int, size: int, ends: Int, lowest: Callable[[Int], Int]) -> list[Int] | None:
        """As `_begins`. `lowest(values)[end]` is the least of the values at which a stage that ends there may begin."""
        layers = []
        here = ends == 0
        for stage, (load, enter) in enumerate(zip(self._load, self._enter, strict=True)):
            layers.append(here)
            values = np.where(here, enter - load, FAR)
            least = lowest(values)
            for until, twice in self._repeats:
                least = np.minimum(least, lowest(np.where(until, values, FAR)) - twice)
            here = (least < ROOM) & (least + load + self._entry <= size)
            rest = self.stages - 1 - stage
            here &= (self._total - self._time <= rest * time) & (self.count - ends >= rest)
            if not here.any():
                return None
        return layers if here[-1] else None

    def _smoothest(self, time: int, size: int) -> tuple[int, ...]:
        """Of the partitions within both bounds the one whose stages' times are most alike (least sum of squares)."""
        layers = self._begins(time, size)
        assert layers is not None  # the bounds were found feasible
        places = [np.flatnonzero(layer) for layer in layers] + [np.array([self.count])]
        cost, origin = np.zeros(1), list[Int]()
        for load, enter, begins, ends in zip(self._load, self._enter, places, places[1:], strict=False):
            spent = self._time[ends] - self._time[begins][:, None]
            held = load[ends] + self._entry[ends] - (load - enter)[begins][:, None] - self._twice(begins, ends)
            allowed = (ends > begins[:, None]) & (spent <= time) & (held <= size)
            costs = np.where(allowed, cost[:, None] + spent.astype(float) ** 2, np.inf)
            best = costs.argmin(axis=0)
            origin.append(best)
            cost = costs[best, np.arange(len(ends))]
        found, place = list[int](), 0
        for begins, best in zip(reversed(places[:-1]), reversed(origin), strict=True):
            place = int(best[place])
            found.append(int(begins[place]))
        return tuple(reversed(found))


def _prefix(values: Sequence[int]) -> Int:
    return np.concatenate([[0], np.cumsum(np.array(values, dtype=np.int64))])


def _fill_minima(table: Int, values: Int) -> None:
    """Row k gets the minimum over 2**k values from each place on, as far as they go."""
    table[0] = values
    for level in range(1, len(table)):
        half = 1 << (level - 1)
        upper, lower = table[level], table[level - 1]
        upper[-half:] = lower[-half:]
        np.minimum(lower[:-half], lower[half:], out=upper[:-half])


def _least(low: int, high: int, enough: Callable[[int], bool]) -> int:
    """The least value in [low, high] that is enough; `high` is enough."""
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    return low
