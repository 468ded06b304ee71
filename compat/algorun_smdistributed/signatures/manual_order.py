"""Stages that come nearest to a partition that a script asks for, module by module. Pure.

Stages run one after the other in the order of the model's calls. A script may ask for partitions in any other order.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from algorun_train.parallel.model.segments import modules_around

Int = NDArray[np.int64]
MOST = 8  # partitions up to which all orders are tried: 40,320 orders of 8, a few milliseconds per segment
FAR = 2**62  # more than any cost


@dataclass(frozen=True, slots=True)
class Placement:
    """The first segment of each stage, and the partition of the script that becomes this stage."""

    begins: tuple[int, ...]
    """index of each stage's first segment"""
    order: tuple[int, ...]
    """the number of the script's partition for each stage"""

    def partitions(self, segments: Sequence[Sequence[object]]) -> list[int]:
        """The partition of each unit, in the order of the calls. `segments` have as many units as for `nearest`."""
        spans = zip(self.order, self.begins, [*self.begins[1:], len(segments)], strict=True)
        return [number for number, begin, end in spans for units in segments[begin:end] for _ in units]


def nearest(segments: Sequence[Sequence[tuple[int, int]]], partitions: int) -> Placement:
    """The stages, one for each partition and none empty, in which the fewest bytes are in another partition than asked.

    Each segment, in the order of the calls, has its units as (partition asked for, bytes of parameters). If several results
    have equal bytes, these decide, in this order: the fewest units in another partition, partitions in the order of their
    numbers, later stages that begin early. Exact up to MOST partitions. With more, only two orders of the partitions are
    tried: that of their numbers and that of their first calls.
    Whole numbers only, so the result is the same on every rank. Raises ValueError for fewer segments than partitions.
    """
    if not 0 < partitions <= len(segments):
        raise ValueError(f"{partitions} partitions of {len(segments)} segments")
    costs = _costs(segments, partitions)
    order = tuple(range(partitions))
    if _least(costs, np.array([order]))[0]:
        orders = list(itertools.permutations(order)) if partitions <= MOST else [order, _called(segments, partitions)]
        order = orders[_least(costs, np.array(orders)).argmin()]
    begins, stage = [0] * partitions, partitions - 1
    before = [best[0].tolist() for best in _best(costs, np.array([order]))]
    for segment in range(len(segments) - 1, 0, -1):
        if stage and before[segment - 1][stage - 1] < before[segment - 1][stage]:
            begins[stage] = segment
            stage -= 1
    return Placement(tuple(begins), order)


def outermost(moves: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """What has moved, from which partition and to which, the largest first: the outermost modules whose units all went one
    way. `moves` has every unit of the model, `sizes` their bytes."""
    ways: dict[str, set[tuple[int, int]]] = {}
    for unit, move in moves.items():
        for name in modules_around(unit):
            ways.setdefault(name, set()).add(move)
    found: Counter[tuple[str, int, int]] = Counter()
    for unit, (asked, partition) in moves.items():
        if asked != partition:
            name = next(name for name in modules_around(unit) if len(ways[name]) == 1)
            found[name, asked, partition] += sizes[unit]
    return [move for move, _ in found.most_common()]


def _called(segments: Sequence[Sequence[tuple[int, int]]], partitions: int) -> tuple[int, ...]:
    """The partitions in the order of their first calls; partitions without a unit come last."""
    called = [asked for units in segments for asked, _ in units]
    return tuple(dict.fromkeys([*called, *range(partitions)]))


def _costs(segments: Sequence[Sequence[tuple[int, int]]], partitions: int) -> Int:
    """The cost of each segment in each partition: bytes in the wrong partition, then units. [segments, partitions]"""
    costs = np.zeros((len(segments), partitions), dtype=np.int64)
    weight = 1 + sum(len(units) for units in segments)
    for row, units in zip(costs, segments, strict=True):
        for asked, size in units:
            row += size * weight + 1
            row[asked] -= size * weight + 1
    return costs


def _best(costs: Int, orders: Int) -> Iterator[Int]:
    """After each segment the least cost so far, for each order and each stage that the segment may be in. [orders, stages]"""
    best = np.full(orders.shape, FAR, dtype=np.int64)
    best[:, 0] = 0
    for number, row in enumerate(costs):
        if number:
            best[:, 1:] = np.minimum(best[:, 1:], best[:, :-1])
        best = best + row[orders]
        yield best


def _least(costs: Int, orders: Int) -> Int:
    """The cost of the best stages for each order. [orders]"""
    (last,) = deque(_best(costs, orders), maxlen=1)
    return last[:, -1]
