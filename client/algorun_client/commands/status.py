"""`algorun status`: where a job is, or how it ended; of a sweep or a tuning, all of its points."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from algorun.common.durations import duration
from algorun_client.aws.job_cost import JobCost, cost
from algorun_client.aws.job_state import JobState
from algorun_client.common import json_lines
from algorun_client.common.codes import ClientCode
from algorun_client.connection import Site
from algorun_client.follow.held_hosts import no_hold
from algorun_client.follow.line_text import shown
from algorun_client.follow.outcome import judge
from algorun_client.follow.view import state_of_job
from algorun_client.submit.chain import sagemaker_results, sweep_results
from algorun_client.submit.chain.sweep_results import SweptPoints
from algorun_client.submit.read import task_place
from algorun_client.submit.read.common_options import add_job_argument
from algorun_client.submit.read.tune import TaskTune

from . import cost_text
from .find_job import address_of, connected, find_job, points_of, tuned_by_sagemaker, tuning_job_of


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_job_argument(parser)


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Returns 0 whatever the job's state is."""
    known = task_place.read_place(options, environ, Path.cwd())
    connection = connected(known, environ)
    if (tuned := tuned_by_sagemaker(known, options.job)) is not None:
        return _tuner(options, known, tuned, connection)
    if (swept := points_of(connection, options.job, known)) is not None:
        return _sweep(options, known, swept, connection)
    state = find_job(connection, options.job, known)
    costs = cost(state, known.prices if connection.session else {})
    if options.json:
        links = dict(connection.links(state.kind, state.job))
        json_lines.write("state", **state_of_job(state), cost=costs.amount, links=links)
        json_lines.write_end(json_lines.LastObject(job=state.job))
    else:
        print(_text(state, costs, connection))
    return ClientCode.OK


def _sweep(options: argparse.Namespace, known: task_place.TaskPlace, swept: SweptPoints, connection: Site) -> int:
    """The points of a sweep or a tuning, each a task of its own. Their metrics take longer: `algorun results` reads them."""
    address = address_of(connection, known, options.job)
    found = sweep_results.read_results(connection.target, address, swept, {}, None, connection.pace)
    if not options.json:
        counts = Counter(row.status for row in found.rows)
        points = cost_text.counted(len(found.rows), "point")
        word = "sweep" if task_place.sweep_of(known, options.job) else "tuning"
        listed = [f"{number} {status}" for status, number in counts.items()]
        print(f"{word} {options.job}: {'; '.join([points, ', '.join(listed)][: 1 + bool(listed)])}")
    sweep_results.write(found, as_json=options.json)
    if options.json:
        json_lines.write_end(json_lines.LastObject())
        return ClientCode.OK
    point = next((row.task for row in found.rows if row.job), "")
    if point:
        print(f"see one with: algorun status {point}{connection.options}, or algorun logs {point}{connection.options}")
    else:
        print(f"start them with: algorun submit {options.job}{connection.options}")
    return ClientCode.OK


def _tuner(options: argparse.Namespace, known: task_place.TaskPlace, tuned: TaskTune, connection: Site) -> int:
    """The tuning job of SageMaker's tuner, and its jobs."""
    found = tuning_job_of(connection, options.job, known)
    address = address_of(connection, known, options.job)
    if options.json:
        json_lines.write("tuning", job=found.name, status=found.status, text=found.counted)
    else:
        print(f"tuning job {found.name}: {found.status}, {found.counted}")
    sweep_results.write(sagemaker_results.results(connection, address, tuned, None), as_json=options.json)
    if options.json:
        json_lines.write_end(json_lines.LastObject(job=found.name))
    return ClientCode.OK


def _text(state: JobState, costs: JobCost, connection: Site) -> str:
    now = datetime.now(UTC)
    detail = f" ({state.detail})" if state.detail and state.detail != state.status else ""
    spot = ", spot" if state.is_spot else ""
    lines = [
        f"{state.job}: {state.status}{detail}",
        f"  {state.kind} on {state.hosts.text}{spot}",
    ]
    times = state.times
    if times.created:
        lines.append(f"  created {times.created.astimezone():%Y-%m-%d %H:%M:%S}")
    lines += [f"  {each.name:<16} {duration(each.seconds(now))}" for each in state.phases]
    price = cost_text.price(costs) if connection.session else ""  # this machine costs nothing
    about = (cost_text.history(state), cost_text.paid(state, costs), price)
    lines += [f"  {text}" for text in about if text]
    lines += [f"  {name}: {address}" for name, address in connection.links(state.kind, state.job).items()]
    if not state.ended:
        return "\n".join([*lines, f"  follow it with: {connection.follow_again(state.job)}"])
    outcome = judge(state)
    lines += [f"  {shown(line)}" for line in outcome.text.splitlines()]
    if state.hold_s:
        lines.append(f"  {no_hold(state)}")
    return "\n".join([*lines, outcome.line(state.job)])
