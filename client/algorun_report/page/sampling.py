"""The points of several series on one x axis, and fewer of them where a screen could not show them apart. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from algorun_report.run_report import Series


@dataclass(frozen=True, slots=True)
class Points:
    """Columns of one chart. `columns[s][n]` is the value of series s at `x[n]`, None where it has none."""

    x: tuple[float, ...]  # never decreases
    columns: tuple[tuple[float | None, ...], ...]
    buckets: int  # 0: every value is there; else the number of stretches, each with its smallest and largest value


def sample(series: Sequence[Series], most: int) -> Points:
    """All values if they stand at no more than `most` places of the x axis, else two for each of `most // 2` buckets.

    A bucket keeps the smallest and the largest value that each series has in it, in their order: no peak is lost, and
    none is invented. Their x is that of the bucket's first or second half.
    """
    if max((len(each.x) for each in series), default=0) > most:
        return _extremes(series, max(1, most // 2))
    places: Counter[float] = Counter()
    for each in series:
        places |= Counter(each.x)  # the largest count: two lines of one host may have the same time
    if places.total() <= most:
        return _all(series, places)
    return _extremes(series, max(1, most // 2))


def _all(series: Sequence[Series], places: Counter[float]) -> Points:
    x = sorted(places.elements())
    first = {value: n for n, value in reversed(list(enumerate(x)))}
    columns = []
    for each in series:
        column: list[float | None] = [None] * len(x)
        used: Counter[float] = Counter()
        for place, value in zip(each.x, each.values, strict=True):
            column[first[place] + used[place]] = value
            used[place] += 1
        columns.append(tuple(column))
    return Points(tuple(x), tuple(columns), 0)


def _extremes(series: Sequence[Series], buckets: int) -> Points:
    begin = min(each.x[0] for each in series if each.x)
    end = max(each.x[-1] for each in series if each.x)
    width = (end - begin) / buckets or 1.0
    columns = []
    for each in series:
        column: list[float | None] = [None] * (2 * buckets)
        values = list(each.values)
        for bucket, low, high in _stretches(each.x, begin, width, buckets):
            piece = values[low:high]
            smallest, largest = min(piece), max(piece)
            pair = [smallest, largest] if piece.index(smallest) <= piece.index(largest) else [largest, smallest]
            column[2 * bucket] = pair[0]
            if high - low > 1:
                column[2 * bucket + 1] = pair[1]
        columns.append(tuple(column))
    x = chain.from_iterable((begin + (n + 0.25) * width, begin + (n + 0.75) * width) for n in range(buckets))
    return Points(tuple(round(value, 3) for value in x), tuple(columns), buckets)


def _stretches(x: Sequence[float], begin: float, width: float, buckets: int) -> Iterator[tuple[int, int, int]]:
    """The buckets that hold some of `x`, each with the first index in it and the one after the last."""
    low = 0
    for bucket in range(buckets):
        high = len(x) if bucket == buckets - 1 else bisect_left(x, begin + (bucket + 1) * width, low)
        if high > low:
            yield bucket, low, high
        low = high
