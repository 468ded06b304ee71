"""The report of a job's folder. Raises UserError where the folder is none, or a file of it is damaged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from algorun.common.errors import UserError
from algorun.common.sizes import size_text
from algorun_report.run_report import Axis, Cost, ReportedAttempt, ReportedPhase, RunReport

from . import attempts
from .attempts import HostsStart
from .definitions import Definition, definition, is_bundled, merged, refuse_silent
from .host_figures_file import MeasuredHosts, read_host_figures
from .json_files import Fields, read_object
from .log_files import ResultFolder, find_logs, result_folders, shown
from .rank_times_file import RanksOverTime, read_rank_times
from .scan import LogScan, scan
from .sweep_curves import read_sweep, with_curves
from .utilization_file import HostUse, read_utilization

LONGEST_FAILURE = 8000  # characters of a failure with its traceback
MOST_DIGITS = 4  # of an attempt's number, as in logs
STATUS = {"ok": "Completed", "failed": "Failed", "stopped": "Stopped"}  # of the launcher's result.json
LINKS = ("console", "logs")
CONSOLE = re.compile(r"https://[a-z0-9-]+\.console\.(?:aws\.amazon\.com|amazonaws\.cn|amazonaws-us-gov\.com)/")
FETCH = "fetch the job again: algorun fetch TASK"
IMAGE_ROW = "image"


def read_report(folder: Path, asked_for: Sequence[Definition] = (), rate: float | None = None) -> RunReport:
    """Everything that the folder tells. `asked_for`: metrics to look for besides; `rate`: the price of a host and hour.

    Raises UserError if `folder` is no job's folder, a file is damaged, one of these metrics never appeared, or a job that
    did not fail printed no metric at all.
    """
    if not folder.is_dir():
        raise _not_a_folder(folder)
    logs, results = find_logs(folder), result_folders(folder)
    job, request = read_object(folder / "job.json", FETCH), read_object(folder / "request.json", FETCH)
    if not is_job_folder(folder):
        raise UserError(
            str(folder),
            "is no job's folder: it has no logs/*.log, no job.json and no output of the launcher",
            fix="algorun fetch TASK, then algorun report FOLDER with the folder that it names",
        )
    facts = _facts(folder, job, request, _results(results))
    definitions = merged(asked_for, _of_job(folder, job, request))
    found = scan(logs, definitions, facts.created)
    refuse_silent(found.silent, dict.fromkeys(each.name for each in found.metrics))
    times = read_rank_times(results)
    found = replace(found, begin=min(times.begins.values(), default=None) if found.begin is None else found.begin)
    use = read_utilization(folder, found.begin, FETCH)
    own_rate = job.number("rate") if job else None
    found = replace(found, starts=_with_begins(found.starts, times))
    report = _with_logs(facts, found, own_rate if rate is None else rate, results)
    report = _with_hosts(report, use, read_host_figures(results, found.begin))
    report = _with_ranks(report, times)
    if sweep := read_sweep(folder, FETCH):
        report = replace(report, sweep=with_curves(sweep, folder.resolve(), found, definitions, facts.job, FETCH))
    if not report.metrics and not report.utilization and not report.activities.hosts and not report.has_failed:
        raise UserError(
            str(folder),
            f"no line of the job's {len(logs)} log files holds a metric, so there is nothing to draw",
            fix="name one that its lines hold, such as --metric loss='loss=([0-9.]+)'",
        )
    return report


def is_job_folder(folder: Path) -> bool:
    """True if there is anything of a job in a folder."""
    return bool((folder / "job.json").is_file() or find_logs(folder) or result_folders(folder))


def _with_hosts(report: RunReport, use: HostUse, measured: MeasuredHosts) -> RunReport:
    """The report with figures of the hosts, which begin with the first one if nobody knows when the job began.

    The launcher's own figures go before CloudWatch's of the same name: they are finer, and there without its rights.
    """
    own = {each.name for each in measured.utilization}
    others = [each for each in use.utilization if each.name not in own]
    unknown = () if measured.utilization else use.unknown
    return replace(
        report,
        utilization=(*measured.utilization, *others),
        traffic=measured.traffic,
        notices=(*report.notices, *unknown, *measured.unreadable),
    )


def _with_begins(starts: tuple[HostsStart, ...], times: RanksOverTime) -> tuple[HostsStart, ...]:
    """The last start with the begins of its attempts, as far as no log has told them."""
    return (*starts[:-1], replace(starts[-1], begins={**times.begins_of_restarts, **starts[-1].begins}))


def _with_ranks(report: RunReport, times: RanksOverTime) -> RunReport:
    """The report with what ranks did over time."""
    return replace(
        report,
        activities=times.since(report.created or 0.0),
        notices=(*report.notices, *times.unreadable),
    )


def _not_a_folder(folder: Path) -> UserError:
    if folder.exists():
        return UserError(str(folder), "is not a folder", fix="name the folder that algorun fetch has made")
    return UserError(str(folder), "no such folder", fix=f"algorun fetch {folder}, then algorun report with its folder")


@dataclass(frozen=True, slots=True)
class _Results:
    """What the launcher and the program left in output/data of the first host that has it.

    A program may write files of these names for itself: `foreign` says why one of them is not read.
    """

    kind: str = ""
    line: str = ""
    figures: tuple[tuple[str, str], ...] = ()
    ran: tuple[tuple[str, str], ...] = ()
    foreign: tuple[str, ...] = ()


def _results(folders: Sequence[ResultFolder]) -> _Results:
    kind = line = ""
    figures: tuple[tuple[str, str], ...] = ()
    ran: tuple[tuple[str, str], ...] = ()
    foreign = []
    for each in folders:
        try:
            result = read_object(each.path / "result.json", FETCH)
            if result and not kind:
                ran = _ran_rows(result.table("ran"))
                kind, line = result.text("kind"), result.text("line")
        except UserError as error:
            foreign.append(_left_out(error))
        try:
            summary = read_object(each.path / "summary.json", FETCH)
            if summary and not figures:
                figures = tuple((shown(name), shown(value)) for name, value in summary.plain())
        except UserError as error:
            foreign.append(_left_out(error))
    return _Results(kind, line, figures, ran, tuple(foreign))


def _left_out(error: UserError) -> str:
    return f"{Path(error.where).name} in the job's output is left out: {error.what}."


def _of_job(folder: Path, job: Fields | None, request: Fields | None) -> list[Definition]:
    """The metric definitions that the job was submitted with."""
    listed, origin = job.tables("metrics") if job else [], folder / "job.json"
    if not listed and request:
        create, origin = request.table("create"), folder / "request.json"
        listed = create.table("AlgorithmSpecification").tables("MetricDefinitions")
    return [definition(each.text("Name"), each.text("Regex"), str(origin)) for each in listed]


def _facts(folder: Path, job: Fields | None, request: Fields | None, results: _Results) -> RunReport:
    """What needs no log."""
    status = (job.text("status") if job else "") or STATUS.get(results.kind, "")
    resources = request.table("create").table("ResourceConfig") if request else None
    kind = (job.text("host_kind") if job else "") or "instances"
    named = (job.text("instance") if job else "") or (resources.text("InstanceType") if resources else "")
    return RunReport(
        job=(job.text("job") if job else "") or (request.text("job") if request else "") or folder.resolve().name,
        status=status,
        kind=(job.text("kind") if job else "") or (request.text("kind") if request else ""),
        instance=named if kind == "instances" else "",
        host_kind=kind,
        closing_line=shown(results.line),
        root_cause=_root_cause(folder, job, results),
        created=job.number("created") if job else None,
        ended=job.number("ended") if job else None,
        phases=tuple(_phases(folder, job)) if job else (),
        retries=int((job.number("retries") if job else None) or 0),
        results=results.figures,
        ran=_with_image(results.ran, request),
        notices=results.foreign,
        cost=_cost(job),
        links=_links(job.table("links")) if job else (),
    )


def _with_image(ran: tuple[tuple[str, str], ...], request: Fields | None) -> tuple[tuple[str, str], ...]:
    """With the image that the job was submitted with, as it was named there, in place of the image's own id."""
    create = request.table("create") if request else None
    named = create.table("AlgorithmSpecification").text("TrainingImage") if create else ""
    if not named:
        return ran
    return (*(row for row in ran if row[0] != IMAGE_ROW), (IMAGE_ROW, shown(named)))


def _links(given: Fields) -> tuple[tuple[str, str], ...]:
    """Pages of AWS's console. A folder may come from anybody: no other address becomes a link."""
    return tuple((name, address) for name, address in given.plain() if name in LINKS and CONSOLE.match(address))


def _cost(job: Fields | None) -> Cost | None:
    """None for a job that costs nothing, as on the user's own machine."""
    if job is None:
        return Cost(hosts=0, billable_s=None)
    if job.flag("paid") is False:
        return None
    return Cost(
        hosts=int(job.number("hosts") or 0),
        billable_s=job.number("billable_s"),
        training_s=job.number("training_s") if job.flag("spot") is not False else None,
    )


def _phases(folder: Path, job: Fields) -> list[ReportedPhase]:
    found = []
    for each in job.tables("phases"):
        begin = each.number("begin")
        if begin is None:
            raise UserError(str(folder / "job.json"), "a phase has no begin: the file is damaged", fix=FETCH)
        found.append(ReportedPhase(shown(each.text("name")), begin, each.number("end")))
    return found


def _root_cause(folder: Path, job: Fields | None, results: _Results) -> str:
    """The failure with its traceback if the launcher left one, else the job's own words."""
    for each in result_folders(folder):
        text = _text(each.path / "failure-full.txt")
        if text:
            return text
    failure = job.text("failure") if job else ""
    return _lines(failure) or (shown(results.line) if results.kind == "failed" else "")


def _text(path: Path) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return _lines(file.read(LONGEST_FAILURE))
    except OSError:
        return ""


def _lines(text: str) -> str:
    return "\n".join(map(shown, text.strip().split("\n")))


def _with_logs(facts: RunReport, found: LogScan, rate: float | None, results: Sequence[ResultFolder]) -> RunReport:
    cost = facts.cost and replace(facts.cost, hosts=facts.cost.hosts or len(found.hosts), rate=rate)
    return replace(
        facts,
        created=found.begin,
        hosts=found.hosts,
        attempts=tuple(_attempts(facts, found, results)),
        axis=found.axis,
        metrics=found.metrics,
        silent_metrics=tuple((each.name, each.regex.pattern) for each in found.silent if not is_bundled(each)),
        cost=cost,
        excerpts=found.excerpts,
        notices=(*facts.notices, *_notices(facts, found)),
    )


def _attempts(facts: RunReport, found: LogScan, results: Sequence[ResultFolder]) -> list[ReportedAttempt]:
    """Of the log, else of the files that the launcher leaves after each attempt of the last start."""
    causes = dict(found.starts[-1].causes)
    for each in results[:1]:
        for path in each.path.glob("failure-attempt-*.txt"):
            digits = path.stem.rpartition("-")[2]
            if digits.isdecimal() and len(digits) <= MOST_DIGITS:
                causes.setdefault(int(digits), _text(path).partition("\n")[0])
    starts = [*found.starts[:-1], replace(found.starts[-1], causes=causes)]
    end = facts.root_cause.partition("\n")[0] if facts.has_failed else ""
    return attempts.numbered(starts, found.begin, attempts.restarted(facts), end)


def _notices(facts: RunReport, found: LogScan) -> list[str]:
    notices = [shown(text) for text in found.slow]
    if not facts.phases:
        unknown = "Phases and billable time" if facts.status else "Phases, billable time and status"
        notices.append(f"{unknown} of the job are unknown: the folder has no job.json.")
    if found.hosts and found.axis is Axis.ORDER:
        notices.append("The lines of the logs have no times (logs/*.times), so no curve is over time.")
    notices += [
        f"{each.title}: {each.unreadable} texts such as {each.example!r} are no finite numbers and are left out."
        for each in found.metrics
        if each.unreadable
    ]
    return notices


def _ran_rows(ran: Fields) -> tuple[tuple[str, str], ...]:
    """A name and a text for each thing that is known. Raises UserError where the file is another's."""
    software = [f"{name} {version}" for name, version in ran.table("versions").plain()]
    found = (
        ("command", ran.text("command")),
        ("commit of the code", ran.text("commit")),
        ("software", ", ".join([*software, *_engine_of(ran)])),
        (IMAGE_ROW, ran.text("image")),
        ("hardware of a host", ", ".join(_hardware(ran))),
    )
    return tuple((name, shown(text)) for name, text in found if text)


def _engine_of(ran: Fields) -> list[str]:
    return [f"started by the engine {engine}"] if (engine := ran.text("engine")) else []


def _hardware(ran: Fields) -> list[str]:
    cpus, memory = ran.number("cpus"), ran.number("memory_bytes")
    found = [f"{cpus:.0f} CPU{'s'[: cpus != 1]}"] if cpus else []
    found += [f"{size_text(int(memory))} of memory"] if memory else []
    return found + [f"{count} x {model}" for model, count in ran.table("gpus").plain()]
