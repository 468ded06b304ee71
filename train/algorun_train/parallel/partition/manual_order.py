"""Stages nearest to a placement that was wished for: they run one after the other, wishes need not. Pure."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

MOST = 8  # partitions of which every order is looked at: 40,320 of them, a few milliseconds per segment
FAR = 2**62  # more than any cost


@dataclass(frozen=True, slots=True)
class Placement:
    """What each stage of a pipeline gets."""

    begins: tuple[int, ...]
    """index of each stage's first segment"""
    order: tuple[int, ...]
    """the partition that each stage is"""


def nearest(segments: Sequence[Sequence[tuple[int, int]]], partitions: int) -> Placement:
    """The stages, one for each partition and none empty, in which the fewest bytes lie elsewhere than wished.

    Each segment, in the order of the calls, holds its units as (wished partition, bytes of parameters). Ties go to the
    fewest units elsewhere, then to partitions in the order of their numbers, then to later stages that begin early.
    Exact up to MOST partitions; of more, the orders looked at are that of their numbers and that of their first calls.
    ValueError for fewer segments than partitions. Whole numbers only: the same on every rank.
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


def _called(segments: Sequence[Sequence[tuple[int, int]]], partitions: int) -> tuple[int, ...]:
    """The partitions in the order of their first calls; those that no unit is wished for come last."""
    called = [wished for units in segments for wished, _ in units]
    return tuple(dict.fromkeys([*called, *range(partitions)]))


def _costs(segments: Sequence[Sequence[tuple[int, int]]], partitions: int) -> np.ndarray:
    """What it costs to have each segment in each partition: bytes first, units where bytes are equal."""
    costs = np.zeros((len(segments), partitions), dtype=np.int64)
    weight = 1 + sum(len(units) for units in segments)
    for row, units in zip(costs, segments, strict=True):
        for wished, size in units:
            row += size * weight + 1
            row[wished] -= size * weight + 1
    return costs


def _best(costs: np.ndarray, orders: np.ndarray) -> Iterator[np.ndarray]:
    """For each segment and order of partitions the least cost up to it, if it lies in each of the stages."""
    best = np.full(orders.shape, FAR, dtype=np.int64)
    best[:, 0] = 0
    for number, row in enumerate(costs):
        if number:
            best[:, 1:] = np.minimum(best[:, 1:], best[:, :-1])
        best = best + row[orders]
        yield best


def _least(costs: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """The cost of the best stages in each of the orders."""
    (last,) = deque(_best(costs, orders), maxlen=1)
    return last[:, -1]
