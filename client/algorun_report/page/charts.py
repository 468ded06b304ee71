"""The charts of a page as data for its script. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from algorun_report.run_report import Axis, Metric, MetricPlace, RunReport, Series

from .sampling import sample

MOST_PLACES = 2000  # on a chart's x axis: two for each pixel of a wide chart
FEWEST_PLACES = 200
MOST_VALUES = 200_000  # on the page: 20 bytes each at most, so it stays below 5 MB
MOST_SERIES = 64  # in one chart; more lines hide each other
MOST_SERIES_ON_PAGE = MOST_VALUES // FEWEST_PLACES

AXES = {MetricPlace.STEP: Axis.STEP, MetricPlace.EPOCH: Axis.EPOCH}

# Units of algorun's own metrics; of others only the user knows them.
UNITS = {
    "train:images_per_s": "images/s",
    "train:sequences_per_s": "sequences/s",
    "train:tokens_per_s": "tokens/s",
    "train:data_wait": "share of the time, 0 to 1",
    "train:peak_memory_mib": "MiB",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart, as the page's script reads it."""

    title: str
    unit: str
    axis: Axis
    percent: bool  # the y axis goes from 0 to 100
    x: tuple[float, ...]
    labels: tuple[str, ...]
    columns: tuple[tuple[float | None, ...], ...]
    last: tuple[float | None, ...]  # of each series, which need not be drawn if there are more than are
    values: int  # before sampling
    buckets: int  # 0: all values are there
    left_out: int  # series that are not drawn
    over_time: Chart | None = None  # of a chart over steps or epochs, the same values over time

    @property
    def note(self) -> str:
        """What the reader must know to read the chart rightly, "" for nothing."""
        notes = []
        if self.buckets:
            notes.append(
                f"{self.values:,} values; drawn are the smallest and the largest in each of {self.buckets:,} stretches"
            )
        if self.left_out:
            notes.append(f"the first {len(self.labels)} of {len(self.labels) + self.left_out} series are drawn")
        return "; ".join(notes)

    def data(self) -> dict[str, object]:
        """For JSON."""
        return {
            "title": self.title,
            "unit": self.unit,
            "axis": self.axis.value,
            "percent": self.percent,
            "x": self.x,
            "labels": self.labels,
            "columns": self.columns,
            "last": self.last,
            "note": self.note,
            "over_time": self.over_time.data() if self.over_time else None,
        }


def metric_charts(report: RunReport) -> list[Chart]:
    """One for each metric, in the order of the report: over steps or epochs if its lines count them."""
    most, places = _limits(report)
    return [_metric_chart(each, report.axis, restarts(report), most, places) for each in report.metrics]


def sweep_charts(report: RunReport) -> list[Chart]:
    """One for each metric of a sweep, with a series for each job."""
    if report.sweep is None:
        return []
    most, places = _limits(report)
    return [_metric_chart(each, report.sweep.axis, 0, most, places) for each in report.sweep.metrics]


def _metric_chart(metric: Metric, axis: Axis, restarted: int, most: int, places: int) -> Chart:
    unit = UNITS.get(metric.name, "")
    plain = _chart(metric.title, unit, axis, metric.series, most, places)
    series = counted(metric, restarted)
    if series is None:
        return plain
    chart = _chart(metric.title, unit, AXES[metric.place], series, most, places)
    return replace(chart, over_time=plain) if axis is Axis.TIME else chart


def restarts(report: RunReport) -> int:
    """How often all ranks were started again."""
    return max(0, len(report.attempts) - 1)


def utilization_charts(report: RunReport) -> list[Chart]:
    """One for each kind of hardware, from 0 to 100 %."""
    most, places = _limits(report)
    return [
        _chart(each.name, "% of the host", Axis.TIME, each.series, most, places, percent=True)
        for each in report.utilization
    ]


def traffic_charts(report: RunReport) -> list[Chart]:
    """One for the network, one for the disks."""
    most, places = _limits(report)
    return [_chart(each.name, "MB/s", Axis.TIME, each.series, most, places) for each in report.traffic]


def _limits(report: RunReport) -> tuple[int, int]:
    """The largest number of series in a chart, and of places on its x axis."""
    numbers = [len(each.series) for each in report.metrics]
    numbers += [len(each.series) for each in report.metrics if each.place in AXES and report.axis is Axis.TIME]  # twice
    numbers += [len(each.series) for each in report.utilization] + [len(each.series) for each in report.traffic]
    if report.sweep:
        numbers += 2 * [len(each.series) for each in report.sweep.metrics]
    most = max(1, min(MOST_SERIES, MOST_SERIES_ON_PAGE // max(1, len(numbers))))
    drawn = sum(min(each, most) + 1 for each in numbers)  # the x axis is a column too
    return most, max(FEWEST_PLACES, min(MOST_PLACES, MOST_VALUES // max(1, drawn)))


def _chart(
    title: str, unit: str, axis: Axis, series: Sequence[Series], most: int, places: int, *, percent: bool = False
) -> Chart:
    drawn = series[:most]
    points = sample(drawn, places)
    columns = points.columns
    if percent:  # a hundredth of a percent is below what any sampler measures
        columns = tuple(tuple(None if value is None else round(value, 2) for value in each) for each in columns)
    return Chart(
        title=title,
        unit=unit,
        axis=axis,
        percent=percent,
        x=points.x,
        labels=tuple(each.label for each in drawn),
        columns=columns,
        last=tuple(_last(each, percent=percent) for each in drawn),
        values=sum(len(each.values) for each in drawn),
        buckets=points.buckets,
        left_out=len(series) - len(drawn),
    )


def _last(series: Series, *, percent: bool) -> float | None:
    if not series.values:
        return None
    return round(series.values[-1], 2) if percent else series.values[-1]


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
