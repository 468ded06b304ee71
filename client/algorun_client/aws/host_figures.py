"""How busy the hosts of a job were: the figures that CloudWatch keeps of each host.

Source: "Amazon SageMaker AI metrics in Amazon CloudWatch" (job metrics) in AWS's developer guide, and GetMetricData in the
API reference of CloudWatch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from algorun_client.request.model import Kind

from .api import CloudWatchApi
from .fields import Table, tables, text
from .job_state import GROUPS, JobState

# Percent. Those of CPU and GPUs count 100 for each core and each GPU.
METRICS = ("CPUUtilization", "MemoryUtilization", "GPUUtilization", "GPUMemoryUtilization", "DiskUtilization")
PERIOD_S = 60  # SageMaker's figures have one point a minute
MOST_QUERIES = 500  # of one call
LATE_S = 120  # the last point of a job may be younger than its end
# After how many days CloudWatch keeps longer periods alone.
COARSER = ((timedelta(days=63), 3600), (timedelta(days=15), 300))


@dataclass(frozen=True, slots=True)
class HostMetric:
    """One metric of one host. Times are seconds since 1970 and increase; there are as many as values."""

    metric: str
    host: str
    times: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A metric, the host that it is of, and the host's name in CloudWatch."""

    metric: str
    host: str
    dimension: str


def read_figures(
    api: CloudWatchApi, state: JobState, now: datetime, finest_s: int = PERIOD_S
) -> tuple[int, list[HostMetric]]:
    """The seconds between two points, and all figures of a job. Raises ApiError.

    `finest_s`: the shortest period that there is. A metric without points, such as those of GPUs on a host that has none,
    is left out.
    """
    if state.times.created is None:
        return finest_s, []
    period_s = _period_s(now - state.times.created, finest_s)
    begin = _rounded(state.times.created, period_s)
    end = min(now, state.times.ended + timedelta(seconds=LATE_S)) if state.times.ended else now
    end = max(_rounded(end, period_s), begin) + timedelta(seconds=period_s)
    wanted = list(_wanted(state))
    found: list[HostMetric] = []
    for first in range(0, len(wanted), MOST_QUERIES):
        found += _read(api, state.kind, wanted[first : first + MOST_QUERIES], begin, end, period_s)
    return period_s, found


def _period_s(age: timedelta, finest_s: int) -> int:
    """CloudWatch has no points of a shorter period than this for a job that began so long ago."""
    return next((each for after, each in COARSER if age >= after), finest_s)


def _rounded(time: datetime, period_s: int) -> datetime:
    return datetime.fromtimestamp(time.timestamp() // period_s * period_s, UTC)


def _wanted(state: JobState) -> Iterator[_Wanted]:
    for metric in METRICS:
        for number in range(1, state.hosts.count + 1):
            yield _Wanted(metric, f"algo-{number}", f"{state.job}/algo-{number}")
            if state.kind is Kind.PROCESSING:  # AWS's guide names these hosts by their number alone
                yield _Wanted(metric, f"algo-{number}", f"{state.job}/{number}")


def _read(
    api: CloudWatchApi, kind: Kind, wanted: Sequence[_Wanted], begin: datetime, end: datetime, period_s: int
) -> list[HostMetric]:
    """The figures of one call with all its pages."""
    query: dict[str, object] = {
        "MetricDataQueries": [_query(number, kind, each, period_s) for number, each in enumerate(wanted)],
        "StartTime": begin,
        "EndTime": end,
        "ScanBy": "TimestampAscending",
    }
    points: defaultdict[str, dict[float, float]] = defaultdict(dict)
    seen = {""}
    while True:
        answer = api.get_metric_data(**query)
        for result in tables(answer, "MetricDataResults"):
            points[text(result, "Id")].update(_points(result))
        token = text(answer, "NextToken")
        if token in seen:
            break
        seen.add(token)
        query["NextToken"] = token
    return [
        HostMetric(each.metric, each.host, tuple(sorted(of_host)), tuple(of_host[time] for time in sorted(of_host)))
        for number, each in enumerate(wanted)
        if (of_host := points.get(f"m{number}"))
    ]


def _query(number: int, kind: Kind, wanted: _Wanted, period_s: int) -> dict[str, object]:
    metric: dict[str, object] = {
        "Namespace": GROUPS[kind],
        "MetricName": wanted.metric,
        "Dimensions": [{"Name": "Host", "Value": wanted.dimension}],
    }
    return {"Id": f"m{number}", "MetricStat": {"Metric": metric, "Period": period_s, "Stat": "Average"}}


def _points(result: Table) -> Mapping[float, float]:
    times, values = result.get("Timestamps"), result.get("Values")
    if not isinstance(times, list | tuple) or not isinstance(values, list | tuple):
        return {}
    return {
        (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp(): float(value)
        for time, value in zip(times, values, strict=False)
        if isinstance(time, datetime) and isinstance(value, int | float) and math.isfinite(value)
    }
