"""CloudWatch's figures of hosts on this machine: the samples that a job's runner writes, averaged over each period."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from algorun.common.codec import loads
from algorun.common.json_values import number as finite
from algorun.common.json_values import table
from algorun_client.aws.api import Answer
from algorun_client.aws.fields import Table, inner, number, tables, text, time
from algorun_client.request.model import Kind

from .job_folder import JobFolder
from .log_reading import KINDS


class LocalCloudWatch:
    """CloudWatchApi."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def get_metric_data(self, **query: object) -> Answer:
        """As CloudWatchApi, in one page. Only the average of MetricStat is known."""
        begin, end = time(query, "StartTime"), time(query, "EndTime")
        assert begin is not None
        assert end is not None
        return {
            "MetricDataResults": [
                _result(text(each, "Id"), self._points(inner(each, "MetricStat"), begin, end))
                for each in tables(query, "MetricDataQueries")
            ]
        }

    def _points(self, stat: Table, begin: datetime, end: datetime) -> dict[int, float]:
        """The average of each period that has samples, by the period's begin."""
        metric = inner(stat, "Metric")
        hosts = [text(each, "Value") for each in tables(metric, "Dimensions") if text(each, "Name") == "Host"]
        kind, period_s, name = (
            KINDS.get(text(metric, "Namespace")),
            number(stat, "Period") or 60,
            text(metric, "MetricName"),
        )
        if kind is None or len(hosts) != 1:
            return {}
        found: defaultdict[int, list[float]] = defaultdict(list)
        for at, figures in _samples(self._root, kind, hosts[0]):
            value = figures.get(name)
            if isinstance(value, int | float) and begin.timestamp() <= at < end.timestamp():
                found[int(at // period_s * period_s)].append(value)
        return {at: sum(values) / len(values) for at, values in sorted(found.items())}


def _result(name: str, points: dict[int, float]) -> dict[str, object]:
    return {
        "Id": name,
        "Timestamps": [datetime.fromtimestamp(at, UTC) for at in points],
        "Values": list(points.values()),
        "StatusCode": "Complete",
    }


def _samples(root: Path, kind: Kind, dimension: str) -> Iterator[tuple[float, Table]]:
    """The samples of `JOB/HOST`."""
    job, _, host = dimension.partition("/")
    if not host or "/" in host or host.startswith(".") or not job or job.startswith("."):
        return
    try:
        lines = (JobFolder.of(root, kind, job).samples / host).read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            sample = table(loads(line))
            at = finite(sample.get("time"))
        except ValueError:  # the runner is writing it, or was killed while it wrote
            continue
        yield at, sample
