"""The curves of several jobs of a sweep in one chart for each metric. The others' folders lie beside the job's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from algorun_report.run_report import MOST_POINTS, Axis, Metric, Series, Sweep, SweepRow

from .definitions import Definition
from .json_files import read_object
from .log_files import find_logs, shown
from .scan import LogScan, scan

JOB = re.compile(r"[\w.-]+")  # a folder's name, no path: sweep.json may come from anybody
FEWEST = 2  # jobs: one alone has its curves elsewhere on the page

FILE = "sweep.json"


def read_sweep(folder: Path, fix: str) -> Sweep | None:
    """None without the file. Raises UserError if it is damaged."""
    file = read_object(folder / FILE, fix)
    if file is None:
        return None
    names, rows = file.texts("names"), []
    for each in file.tables("rows"):
        parameters = each.texts("parameters")
        if len(parameters) != len(names):
            raise each.wrong(f"parameters has {len(parameters)} values for {len(names)} names")
        values = tuple(map(shown, parameters))
        rows.append(SweepRow(shown(each.text("job")), shown(each.text("status")), values, each.number("value")))
    return Sweep(tuple(map(shown, names)), shown(file.text("metric")), tuple(rows))


def with_curves(
    sweep: Sweep, folder: Path, own: LogScan, definitions: Sequence[Definition], job: str, fix: str
) -> Sweep:
    """The sweep with the curves of its first MOST_POINTS jobs, as far as their logs are there.

    `own`: what the logs of `job` hold, whose folder this is. Of each job the first host or rank that printed a metric counts.
    Raises UserError, with `fix`, for a damaged job.json.
    """
    found: dict[str, LogScan] = {}
    for row in sweep.rows[:MOST_POINTS]:
        label = " ".join(f"{name}={value}" for name, value in zip(sweep.names, row.parameters, strict=True)) or row.job
        if row.job == job:
            found[label] = own
        elif JOB.fullmatch(row.job) and row.job not in (".", "..") and (logs := find_logs(folder.parent / row.job)):
            facts = read_object(folder.parent / row.job / "job.json", fix)
            found[label] = scan(logs, definitions, facts.number("created") if facts else None)
    if len(found) < FEWEST:
        return sweep
    axis = Axis.TIME if all(each.axis is Axis.TIME for each in found.values()) else Axis.ORDER
    titles = dict.fromkeys(metric.title for each in found.values() for metric in each.metrics)
    together = (_together(title, found) for title in titles)
    left_out = sum(bool(row.job) for row in sweep.rows) - len(found)
    return replace(sweep, axis=axis, metrics=tuple(each for each in together if each), left_out=left_out)


def _together(title: str, scans: dict[str, LogScan]) -> Metric | None:
    """One metric with a series for each job; None where only one has it."""
    series: list[Series] = []
    first: Metric | None = None
    for label, found in scans.items():
        for metric in found.metrics:
            if metric.title == title:
                first = first or metric
                series.append(replace(metric.series[0], label=label))
    return replace(first, series=tuple(series)) if first is not None and len(series) >= FEWEST else None
