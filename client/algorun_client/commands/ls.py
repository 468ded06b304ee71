"""`algorun ls`: the newest jobs, of both kinds."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path

from algorun.common.durations import duration
from algorun.common.errors import UserError
from algorun_client.aws import fields
from algorun_client.aws.api import SageMakerApi
from algorun_client.aws.job_cost import JobCost, cost
from algorun_client.aws.job_state import JobState, describe
from algorun_client.common import at_once, json_lines
from algorun_client.common.codes import ClientCode
from algorun_client.common.refusals import Unanswered
from algorun_client.connection import Site, connect, local_root
from algorun_client.request.model import Kind
from algorun_client.request.names import in_job_name
from algorun_client.submit.read import task_place
from algorun_client.submit.read.common_options import add_place_options, add_where_options

from . import cost_text

MOST = 1000
PAGE = 100  # the most that SageMaker lists at once


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """One line of the list. Times are seconds since 1970."""

    job: str
    kind: str
    status: str
    created: float
    ended: float | None


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("text", nargs="?", metavar="TEXT", default="", help="only jobs with this text in their name")
    parser.add_argument(
        "--cost", action="store_true", help="also interruptions, billable time, saving and cost; asks for each job"
    )
    parser.add_argument("--max", metavar="N", default="20", help="how many jobs (default: %(default)s)")
    add_where_options(parser)
    add_place_options(parser)


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Prints jobs, the newest first."""
    most = int(options.max) if options.max.isascii() and options.max.isdigit() else 0
    if not 1 <= most <= MOST:
        raise UserError("--max", f"{options.max!r} is not a number of jobs", allowed=f"1 to {MOST}", fix="--max 20")
    known = task_place.read_place(options, environ, Path.cwd())
    connection = _connected(known, environ, as_json=options.json)
    api = connection.target.sagemaker
    text = in_job_name(options.text)  # PROJECT/TASK: as job names begin
    jobs = [job for kind in Kind for job in _listed(api, kind, text, most)]
    jobs = sorted(jobs, key=lambda job: job.created, reverse=True)[:most]
    states = _states(api, jobs) if options.cost else []
    costs = [cost(state, known.prices if connection.session else {}) for state in states]
    if options.json:
        facts = [_facts(*pair) for pair in zip(states, costs, strict=True)] or [{}] * len(jobs)
        for job, more in zip(jobs, facts, strict=True):
            json_lines.write("job", **asdict(job), **more)
        json_lines.write_end(json_lines.LastObject())
    else:
        amounts = map(cost_text.amount, costs) if connection.session else repeat("")  # this machine costs nothing
        cells = [_cells(*each) for each in zip(states, costs, amounts, strict=False)]
        _print_table(
            jobs, cells if connection.session else [each[:1] for each in cells]
        )  # nobody pays for this machine
    return ClientCode.OK


def _connected(known: task_place.TaskPlace, environ: Mapping[str, str], *, as_json: bool) -> Site:
    """Connects with the place. Where nothing says which, and AWS cannot be asked, it is this machine if that has had jobs."""
    try:
        return connect(known.where, profile=known.profile, region=known.region, environ=environ)
    except Unanswered as error:
        if known.where is not None or as_json or not (local_root(environ) / "jobs").is_dir():
            raise
        print(
            f"algorun: jobs of this machine (--where local). AWS is not asked: {error.where}: {error.what}",
            file=sys.stderr,
        )
        return connect("local", profile="", region="", environ=environ)


def _states(api: SageMakerApi, jobs: Iterable[ListedJob]) -> list[JobState]:
    """What Describe says about each job: a list has neither hosts nor billable time."""
    return at_once.each(lambda job: describe(api, Kind(job.kind), job.job), jobs)


def _facts(state: JobState, costs: JobCost) -> dict[str, object]:
    return {
        "spot": state.is_spot,
        "interruptions": state.interruptions,
        "retries": state.retries,
        "billable_s": costs.paid_s,
        "saving": state.saving,
        "cost": costs.amount,
    }


def _listed(api: SageMakerApi, kind: Kind, text: str, most: int) -> list[ListedJob]:
    query: dict[str, object] = {"SortBy": "CreationTime", "SortOrder": "Descending", "MaxResults": min(most, PAGE)}
    if text:
        query["NameContains"] = text
    call, head = (
        (api.list_training_jobs, "TrainingJob")
        if kind is Kind.TRAINING
        else (api.list_processing_jobs, "ProcessingJob")
    )
    found: list[ListedJob] = []
    while len(found) < most:
        answer = call(**query)
        found += [_job(each, kind, head) for each in fields.tables(answer, f"{head}Summaries")]
        token = fields.text(answer, "NextToken")
        if not token:
            break
        query["NextToken"] = token
    return found


def _job(summary: fields.Table, kind: Kind, head: str) -> ListedJob:
    created = fields.time(summary, "CreationTime")
    ended = fields.time(summary, "TrainingEndTime") or fields.time(summary, "ProcessingEndTime")
    return ListedJob(
        job=fields.required(summary, f"{head}Name"),
        kind=kind.value,
        status=fields.required(summary, f"{head}Status"),
        created=created.timestamp() if created else 0.0,
        ended=ended.timestamp() if ended else None,
    )


def _print_table(jobs: Sequence[ListedJob], costs: Sequence[tuple[str, ...]]) -> None:
    """`costs`: the cells of `--cost`, of each job; none without it."""
    if not jobs:
        print("no jobs")
        return
    from algorun_client.common import table  # imports rich

    more = ("interrupted", "billable", "saved", "cost")[: len(costs[0])] if costs else ()
    rows = []
    now = datetime.now(UTC).timestamp()
    for number, job in enumerate(jobs):
        created = datetime.fromtimestamp(job.created).astimezone()
        took = (job.ended or now) - job.created
        cells = costs[number] if costs else ()
        rows.append((job.job, job.kind, job.status, f"{created:%Y-%m-%d %H:%M}", duration(took), *cells))
    table.write(("job", "kind", "status", "created", "took", *more), rows, cut=0)


def _cells(state: JobState, costs: JobCost, amount: str) -> tuple[str, ...]:
    billable = "" if costs.paid_s is None else f"{costs.hosts} x {duration(costs.paid_s)}"
    saved = "" if state.saving is None else f"{100 * state.saving:.0f} %"
    return str(state.interruptions or ""), billable, saved, amount
