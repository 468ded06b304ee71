"""Fewer values where no picture could show more of them: what is read of a long job stays small. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from algorun_report.run_report import Window

GROUP = 4  # values that become two: the smallest and the largest of them


class Samples:
    """Moments and values of one series, at most `2 * most` of them. Of more, neighbours are left out; no peak is lost."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.times, self.values = array("d"), array("d")

    def add(self, time: float, value: float) -> None:
        """One more value, after all others."""
        self.times.append(time)
        self.values.append(value)
        if len(self.times) > 2 * self._most:
            self._thin()

    def _thin(self) -> None:
        kept: list[int] = []
        for low in range(0, len(self.times), GROUP):
            group = range(low, min(low + GROUP, len(self.times)))
            value = self.values.__getitem__
            kept += sorted({min(group, key=value), max(group, key=value)})
        self.times = array("d", [self.times[n] for n in kept])
        self.values = array("d", [self.values[n] for n in kept])


def merge_windows(windows: Sequence[Window], count: int, seen: Sequence[int]) -> list[Window]:
    """Neighbouring windows as one, `count` of them at most, with the activities `seen`. A gap, as between two attempts,
    stays."""
    groups: list[list[Window]] = []
    for each in windows:
        if groups and len(groups[-1]) < count and groups[-1][-1].end == each.begin:
            groups[-1].append(each)
        else:
            groups.append([each])
    return [_mean(group, seen) for group in groups]


def _mean(group: Sequence[Window], seen: Sequence[int]) -> Window:
    lengths = [each.end - each.begin for each in group]
    whole = sum(lengths)
    shares = tuple(
        tuple(
            sum(each.shares[rank][at] * length for each, length in zip(group, lengths, strict=True)) / whole
            for at in seen
        )
        for rank in range(len(group[0].shares))
    )
    steps, reports = sum(each.steps for each in group), sum(each.reports for each in group)
    return Window(group[0].begin, group[-1].end, steps, shares, reports)
