"""The search for cuts where a rank holds several stages: every cut if there are few, else from good ones downhill.

A rank's memory then depends on all of its stages at once and the step on the order of the schedule, so no sum or
maximum tells what a cut costs: each one is simulated.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

Begins = tuple[int, ...]
Cost = tuple[float, ...]


def search(cost: Callable[[Begins], Cost], starts: Sequence[Begins], segments: int, budget: int) -> Begins:
    """The cheapest cut of `segments` found with about `budget` evaluations; it is none worse than any of `starts`.

    The result depends on the arguments alone, not on how fast this machine is.
    """
    stages = len(starts[0])
    if math.comb(segments - 1, stages - 1) <= budget:
        return min(every_cut(segments, stages), key=cost)
    return _descend(cost, min(starts, key=cost), segments, budget)


def every_cut(segments: int, stages: int) -> Iterator[Begins]:
    return ((0, *rest) for rest in itertools.combinations(range(1, segments), stages - 1))


def _descend(cost: Callable[[Begins], Cost], begins: Begins, segments: int, budget: int) -> Begins:
    """Moves single begins, and then runs of them together, as long as that helps."""
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
