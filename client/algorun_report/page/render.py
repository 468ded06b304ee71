"""The page as text. Every text of the job goes through Jinja's escaping; the policy allows our two scripts alone."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from algorun.common import __version__
from algorun.common.written import GENERATOR
from algorun_report.run_report import INTERRUPTED, Axis, Metric, MetricPlace, ReportedPhase, RunReport

from .charts import Chart, metric_charts, sweep_charts, traffic_charts, utilization_charts
from .heat import HeatMap, heat_map
from .words import duration, figure, moment, money

MOST_VERDICTS = 20  # on the time axis: more hide each other


def render(report: RunReport) -> str:
    """One HTML file."""
    metrics, hosts = metric_charts(report), [*utilization_charts(report), *traffic_charts(report)]
    swept, heat = sweep_charts(report), heat_map(report.activities)
    library, script, style = _file("uPlot.iife.min.js"), _file("page.js"), _file("uPlot.min.css") + _file("page.css")
    page = _template().render(
        report=report,
        version=__version__,
        generator=GENERATOR,
        policy=_policy((library, script), style),
        style=Markup(style),
        library=Markup(library),
        script=Markup(script),
        metrics=metrics,
        host_charts=hosts,
        sweep_charts=swept,
        heat=heat,
        heat_data=heat.data() if heat else None,
        licence=_file("uPlot.LICENSE"),
        opened=_opened(report),
        marks=_marks(report),
        data=[chart.data() for chart in (*metrics, *swept, *hosts)],  # in the order of the page
        missing=_missing(report, metrics, heat),
        can_choose=any(each.over_time for each in (*metrics, *swept)),
        values=[_values(each) for each in report.metrics],
        phases=_phases(report.phases, report.ended),
    )
    return page.encode("utf-8", "replace").decode()  # half a surrogate pair, from a JSON file or a file's name


def _missing(report: RunReport, metrics: Sequence[Chart], heat: HeatMap | None) -> list[str]:
    """What the page cannot show, in sentences. A section without anything in it has one here instead."""
    found = list(report.notices)
    found += [
        f"{metric.title} against steps: the steps of its lines do not count through the job, so its curve is over "
        f"{'time' if chart.axis is Axis.TIME else 'the order of its values'}."
        for metric, chart in zip(report.metrics, metrics, strict=True)
        if metric.place is MetricPlace.STEP and chart.axis is not Axis.STEP
    ]
    if heat is None:
        found.append(
            "What ranks did over time: no rank_times-HOST.jsonl of the folder has two reports with an activity."
        )
    if not report.utilization and not report.traffic:
        found.append("CPU, memory, GPUs and disks of the hosts: the folder holds no figures of them.")
    return found


def _opened(report: RunReport) -> str:
    """The host whose last lines are open: the one that the root cause names, else the first."""
    words = re.findall(r"[\w.-]+", report.root_cause.partition("\n")[0])
    hosts = [each.host for each in report.excerpts]
    return next((host for host in hosts if host in words), hosts[0] if hosts else "")


def _marks(report: RunReport) -> list[dict[str, object]]:
    """Where further attempts begin on the time axis, where spot instances were taken back, and where ranks were slow."""
    begin = report.created
    if begin is None:
        return []
    found = [(each.begin, f"attempt {each.number}") for each in report.attempts if each.number > 1]
    found += [(each.begin, "interrupted") for each in report.phases if each.name == INTERRUPTED]
    found += [(begin + x, _short(line)) for x, line in report.activities.slow[:MOST_VERDICTS]]
    known = sorted((time, text) for time, text in found if time is not None)
    return [{"x": round(time - begin, 3), "text": text} for time, text in known]


def _short(line: str) -> str:
    """Of a verdict about slow ranks, who is slow: `slow: rank 2`."""
    return line.partition(" on ")[0]


@functools.cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("algorun_report.page", "files"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "moment": moment, "figure": figure, "money": money}
    return environment.get_template("page.html.j2")


@functools.cache
def _file(name: str) -> str:
    return (resources.files("algorun_report.page") / "files" / name).read_text(encoding="utf-8")


def _policy(scripts: tuple[str, ...], style: str) -> str:
    """Nothing may be loaded or sent; only these scripts run, and only this style holds."""
    allowed = " ".join(map(_hash, scripts))
    return f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesRow:
    """A metric in numbers, over all its sources."""

    name: str
    sources: int
    values: int
    first: float
    last: float
    smallest: float
    largest: float


def _values(metric: Metric) -> ValuesRow:
    series = metric.series
    return ValuesRow(
        name=metric.title,
        sources=len(series),
        values=sum(len(each.values) for each in series),
        first=series[0].values[0],
        last=series[0].values[-1],
        smallest=min(min(each.values) for each in series),
        largest=max(max(each.values) for each in series),
    )


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A phase, how long it took and its share of all phases. `seconds` is None while it lasts."""

    phase: ReportedPhase
    seconds: float | None
    share: float


def _phases(phases: tuple[ReportedPhase, ...], ended: float | None) -> list[PhaseRow]:
    lengths = []
    for each in phases:
        end = each.end if each.end is not None else ended
        lengths.append(None if end is None else max(0.0, end - each.begin))
    total = sum(each or 0.0 for each in lengths) or 1.0
    return [PhaseRow(each, length, (length or 0.0) / total) for each, length in zip(phases, lengths, strict=True)]
