"""Curves against the number of the step or the epoch that their lines name. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from algorun_report.run_report import Axis, Metric, MetricPlace, Series

AXES = {MetricPlace.STEP: Axis.STEP, MetricPlace.EPOCH: Axis.EPOCH}


def counted(metric: Metric, restarts: int) -> tuple[Series, ...] | None:
    """The series over their steps or epochs; None if these do not count through the job, as steps that begin again in each epoch.

    After a restart the ranks repeat some steps: the later values replace the earlier ones. `restarts`: of the job's ranks.
    """
    if metric.place is MetricPlace.NONE:
        return None
    found = []
    for each in metric.series:
        kept = _kept(each, restarts)
        if kept is None:
            return None
        found.append(Series(each.label, [each.numbers[n] for n in kept], [each.values[n] for n in kept]))
    return tuple(found)


def _kept(series: Series, restarts: int) -> Sequence[int] | None:
    """The places in `series` of the values to draw. None if the numbers go back more often than ranks were restarted."""
    kept: list[int] = []
    for at, number in enumerate(series.numbers):
        if kept and number <= series.numbers[kept[-1]]:
            if not restarts or series.epochs[at] > series.epochs[kept[-1]]:  # False for NaN
                return None
            restarts -= 1
            while kept and series.numbers[kept[-1]] >= number:
                kept.pop()
        kept.append(at)
    return kept
