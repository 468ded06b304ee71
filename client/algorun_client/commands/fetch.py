"""`algorun fetch`: brings home what a job left, also a failed one and one that still runs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from algorun.common.errors import UserError
from algorun.common.written import mark
from algorun_client.common import json_lines
from algorun_client.common.codes import ClientCode
from algorun_client.common.errors import NotFound
from algorun_client.common.progress import for_command
from algorun_client.fetch import metrics_file
from algorun_client.fetch.in_place import fetched, refuse_own, remove
from algorun_client.fetch.job_facts import FILE, JobBefore, job_before, note_other, write_job_facts
from algorun_client.submit.chain import sweep_results
from algorun_client.submit.read import task_place
from algorun_client.submit.read.common_options import add_job_argument

from . import results
from .find_job import connected, find_job
from .job_pieces import JobPiece, job_facts, pieces

PARTS = ("model", "output", "state", "tensorboard", "logs", "metrics")
ENTRIES = (*PARTS[:-1], metrics_file.FILE)  # of the folder


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_job_argument(parser)
    parser.add_argument(
        "--what", metavar="LIST", default=",".join(PARTS), help="what to fetch, of %(default)s (all by default)"
    )
    parser.add_argument(
        "--best",
        metavar="METRIC",
        default="",
        help="JOB is a task with a sweep or a tuning: the best of its jobs by METRIC, max:METRIC or min:METRIC",
    )
    parser.add_argument("--to", metavar="DIR", default="", help="the folder (default: one with the job's name)")


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Returns 0, also if the job left nothing of some kind: it says so."""
    chosen = [each.strip() for each in options.what.split(",") if each.strip()]
    wrong = [each for each in chosen if each not in PARTS]
    if wrong or not chosen:
        raise UserError("--what", f"{options.what!r}", allowed=", ".join(PARTS), fix="--what model,logs")
    if options.best:
        options.job = _best(options, environ)
    known = task_place.read_place(options, environ, Path.cwd())
    connection = connected(known, environ)
    state = find_job(connection, options.job, known)
    folder = Path(options.to or state.job)
    progress = for_command(is_silent=options.json)
    wanted = [piece for piece in pieces(connection, state, folder, progress) if piece.what in chosen]
    refuse_own(folder, [FILE, *(_entry(piece, folder) for piece in wanted)])
    before = job_before(folder)
    is_other = before.is_other(state.job)
    facts = job_facts(state, connection, known.prices)
    removed: set[Path] = set()
    if is_other:  # its facts come last
        in_the_way = _in_the_way(wanted, folder, before, everything=set(chosen) == set(PARTS))
        note_other(folder, state.job)
        removed = {path for path in in_the_way if remove(path)}
    else:
        write_job_facts(facts, folder)
    mark(folder, [FILE])
    found = {}
    for path in sorted(removed - {folder / _entry(piece, folder) for piece in wanted}):
        mark(folder, [], absent=[path.name])
        if not options.json:
            print(f"{path}: that of {before.job} is removed")
    for piece in wanted:
        found[str(piece.folder)], text = _bring(piece, folder, before.job if is_other else "", removed)
        if not options.json:
            print(f"{piece.folder}: {text}")
    if is_other:
        write_job_facts(facts, folder)
    if options.json:
        json_lines.write("fetched", job=state.job, status=state.status, files=found)
        json_lines.write_end(json_lines.LastObject(job=state.job))
    return ClientCode.OK


def _entry(piece: JobPiece, folder: Path) -> str:
    """The entry of the folder that the piece is, or lies in."""
    return piece.folder.relative_to(folder).parts[0]


def _in_the_way(wanted: Sequence[JobPiece], folder: Path, before: JobBefore, *, everything: bool) -> set[Path]:
    """Where pieces of another job may lie that would stay beside those of this one. Raises UserError if there are some that the
    user has not asked for."""
    places = {folder / _entry(piece, folder) for piece in wanted}
    left = [path for path in fetched(folder, ENTRIES) if path not in places]
    if left and not everything:
        raise UserError(
            str(left[0]),
            f"is not of this job, as {folder / FILE} tells, and would be taken for its own",
            fix="name another folder by --to, or remove it first",
        )
    merged = (each for each in wanted if not (each.is_whole and each.folder.parent == folder))
    return {*left, *(folder / _entry(each, folder) for each in merged if each.uri not in before.uris)}


def _bring(piece: JobPiece, folder: Path, other: str, gone: Collection[Path]) -> tuple[int, str]:
    """Fetches a piece. Returns the number of its files, and what to say. `other`: the job whose pieces lie in the folder, or "";
    `gone`: those that have been removed."""
    entry = _entry(piece, folder)
    mark(folder, [entry])
    try:
        count = piece.fetch()
    except NotFound:
        count = 0
    if count:
        return count, f"{count} file{'s'[: count != 1]}"
    is_gone = folder / entry in gone or (other and piece.is_whole and remove(piece.folder))
    removed = f"; that of {other} is removed" if is_gone else ""
    if not os.path.lexists(folder / entry):  # what the user puts there is the user's
        mark(folder, [], absent=[entry])
    return 0, f"the job has left nothing there{removed}"


def _best(options: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """The best completed job of a sweep. Raises UserError."""
    found = results.results_of(options, environ, "--best", options.best)
    best = sweep_results.best_of(found)
    if not options.json and found.goal:
        print(f"{found.goal.text}: {best.text} of {best.task}", flush=True)
    return best.job
