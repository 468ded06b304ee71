"""A search for partitions where a rank has several stages: it tries all of them if they are few, else it descends.

The memory of such a rank depends on all of its stages at once, and the step on the order of the schedule. No sum or
maximum gives these costs, so each partition is simulated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from .costs import Begins

Cost = tuple[float, ...]
"""compared item by item: the first difference decides"""


def search_by_cost(cost: Callable[[Begins], Cost], starts: Sequence[Begins], segments: int, budget: int) -> Begins:
    """The cheapest partition of this many segments that about `budget` evaluations find; no worse than any of `starts`.

    The result depends on the arguments alone, not on the speed of this machine: it is the same on all ranks.
    """
    stages = len(starts[0])
    if math.comb(segments - 1, stages - 1) <= budget:
        return min(every_partition(segments, stages), key=cost)
    return _descend(cost, min(starts, key=cost), segments, budget)


def every_partition(segments: int, stages: int) -> Iterator[Begins]:
    """All partitions of this many segments in this many stages, none of them empty."""
    return ((0, *rest) for rest in itertools.combinations(range(1, segments), stages - 1))


def _descend(cost: Callable[[Begins], Cost], begins: Begins, segments: int, budget: int) -> Begins:
    """Moves one begin, or several neighbours together, as long as a move makes the partition cheaper."""
    seen = {begins}
    best = cost(begins)
    moved = True
    while moved and len(seen) < budget:
        moved = False
        for near in _neighbours(begins, segments):
            if near in seen or len(seen) >= budget:
                continue
            seen.add(near)
            price = cost(near)
            if price < best:
                begins, best, moved = near, price, True
                break
    return begins


def _neighbours(begins: Begins, segments: int) -> Iterable[Begins]:
    stages = len(begins)
    widest = max(1, segments // stages)
    steps = [sign << power for power in range(widest.bit_length()) for sign in (1, -1)]
    for together in range(1, stages):
        for first in range(1, stages - together + 1):
            last = first + together
            for step in steps:
                near = (*begins[:first], *(b + step for b in begins[first:last]), *begins[last:])
                end = near[last] if last < stages else segments
                if near[first - 1] < near[first] and near[last - 1] < end:
                    yield near
