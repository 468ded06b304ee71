"""`algorun report JOB`: fetches what the page of a job needs into a cache, and draws it. FOLDER needs no client."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from algorun.common import distributions
from algorun.common.errors import UserError
from algorun.common.sizes import size_text
from algorun_client.aws.api import ObjectStore
from algorun_client.aws.job_state import JobState
from algorun_client.common import json_lines
from algorun_client.common.codes import ClientCode
from algorun_client.common.errors import NotFound
from algorun_client.common.progress import for_command
from algorun_client.connection import Site
from algorun_client.fetch.job_facts import write_job_facts, write_json
from algorun_client.follow.follower import SETTLED_S
from algorun_client.submit.chain.sweep_results import SweepResults
from algorun_client.submit.read import job_file, task_place
from algorun_client.submit.read.common_options import add_job_argument
from algorun_report.options import add_page_options
from algorun_report.run_report import MOST_POINTS

from . import results
from .find_job import connected, find_job
from .job_pieces import JobPiece, job_facts, pieces

if TYPE_CHECKING:
    from algorun_report.command import Page, ReportOptions

LOGS = "logs"
SMALL = ("output", LOGS, "metrics")  # the pieces that a page is drawn from
SWEEP = "sweep.json"  # its table; written each time, because jobs of a sweep go on
EXPECTED = ("logs", "metrics")  # of every job that ran
LARGEST_OUTPUT = 64 << 20  # bytes; the launcher's own files are far smaller
COMPLETE = ".complete"  # its time: when all pieces were fetched
LOGS_COMPLETE = ".logs-complete"  # the same of the logs alone
LIBRARIES = ("jinja2", "markupsafe")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.epilog = (
        "In place of JOB a FOLDER that `algorun fetch` or `algorun simulate` has left: then nothing is fetched."
    )
    add_job_argument(parser)
    add_page_options(parser, "JOB.html")


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Returns 0 if the page is written."""
    asked = _report_options(options)
    known = task_place.read_place(options, environ, Path.cwd())
    connection = connected(known, environ)
    swept = _sweep(options, environ)
    state = find_job(connection, _first(swept) if swept else options.job, known)
    jobs = cache(environ) / _place(connection)
    folder = jobs / state.job
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_job_facts(job_facts(state, connection, known.prices), folder)
    if swept:
        _fetch_logs_of_points(swept, state.job, connection, known, jobs, as_json=options.json)
        write_json(swept.to_json(), folder / SWEEP)
    else:
        (folder / SWEEP).unlink(missing_ok=True)
    if not _is_complete(folder, state, COMPLETE):
        _fetch(connection, state, folder, as_json=options.json)
    page = _page(folder, asked, Path(f"{state.job}.html"))
    page.say(as_json=options.json)
    if options.json:
        json_lines.write_end(json_lines.LastObject(job=state.job))
    return ClientCode.OK


def _sweep(options: argparse.Namespace, environ: Mapping[str, str]) -> SweepResults | None:
    """The results of the sweep or tuning that the options name; None for a task without one, and for a job."""
    task = options.job.rpartition("/")[2]
    file = job_file.read_job_file(options.file, Path.cwd())
    if task not in file.sweeps and task not in file.tunes:
        return None
    return results.results_of(options, environ, f"[task.{task}.sweep] best", "")


def _first(swept: SweepResults) -> str:
    """The job whose curves the page of a sweep shows: the best one, else the first that there is. Raises UserError."""
    listed = [swept.best] if swept.best else [row for row in swept.rows if row.job]
    if not listed:
        raise UserError(swept.task, "no job of the sweep exists yet", fix=f"algorun submit --task {swept.task}")
    return listed[0].job


def _fetch_logs_of_points(
    swept: SweepResults, shown: str, connection: Site, known: task_place.TaskPlace, jobs: Path, *, as_json: bool
) -> None:
    """The logs of the other jobs whose curves the page draws, each in the folder of its name beside that of `shown`."""
    for row in swept.rows[:MOST_POINTS]:
        if row.job in ("", shown):
            continue
        state = find_job(connection, row.job, known)
        folder = jobs / state.job
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if any(_is_complete(folder, state, marker) for marker in (COMPLETE, LOGS_COMPLETE)):
            continue
        for piece in pieces(connection, state, folder, for_command(is_silent=as_json)):
            with contextlib.suppress(NotFound):  # a job that never ran has no logs
                if piece.what == LOGS and piece.fetch():
                    (folder / LOGS_COMPLETE).touch()


def cache(environ: Mapping[str, str]) -> Path:
    """Where fetched jobs are kept. It may be deleted at any time."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "algorun"


def _place(connection: Site) -> str:
    """Jobs of two accounts or regions may have the same name."""
    return f"{connection.session.account()}-{connection.session.region}" if connection.session else "local"


def _is_complete(folder: Path, state: JobState, marker: str) -> bool:
    """True if what the marker stands for was fetched so long after the job's end that no line and no figure can have come since."""
    made, ended = folder / marker, state.times.ended
    return ended is not None and made.is_file() and made.stat().st_mtime > ended.timestamp() + SETTLED_S


def _fetch(connection: Site, state: JobState, folder: Path, *, as_json: bool) -> None:
    progress = for_command(is_silent=as_json)
    counts: dict[str, int] = {}
    for piece in pieces(connection, state, folder, progress):
        if piece.what not in SMALL:
            continue
        try:
            if _is_small(connection.target.store, piece, state.job):
                counts[piece.what] = piece.fetch()
        except NotFound:  # the job has left none
            continue
    if all(counts.get(what) for what in EXPECTED):
        (folder / COMPLETE).touch()


def _is_small(store: ObjectStore, piece: JobPiece, job: str) -> bool:
    """False, with a word to the user, for outputs that would take long to fetch."""
    for size in accumulate(_sizes(store, piece.uri)):
        if size > LARGEST_OUTPUT:
            least = "more than " if piece.uri.endswith("/") else ""
            print(
                f"algorun: note: {piece.what} has {least}{size_text(size)} and is left out; to have its figures on the page:"
                f" algorun fetch {job}, then algorun report {job}/",
                file=sys.stderr,
            )
            return False
    return True


def _sizes(store: ObjectStore, uri: str) -> Iterator[int]:
    if uri:
        yield from (each.size for each in store.list(uri) if uri.endswith("/") or each.uri == uri)


def _report_options(options: argparse.Namespace) -> ReportOptions:
    """What the page is to have. Raises UserError, also without the libraries of the page."""
    try:
        from algorun_report.command import checked
    except ModuleNotFoundError as error:
        if error.name not in LIBRARIES:
            raise
        raise distributions.missing("algorun report", error.name or "", "algorun-client") from None
    return checked(options)


def _page(folder: Path, asked: ReportOptions, default: Path) -> Page:
    """Raises UserError."""
    from algorun_report.command import make_page

    try:
        return make_page(folder, asked, default)
    except UserError as error:
        file = Path(error.where)
        if file.parent != folder:
            raise
        file.unlink(missing_ok=True)  # damaged, such as by a full disk
        (folder / COMPLETE).unlink(missing_ok=True)
        raise UserError(error.where, error.what, fix="the same line again: it fetches the job anew") from None
