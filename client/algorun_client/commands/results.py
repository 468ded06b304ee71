"""`algorun results`: the jobs of a sweep or a tuning, the best one first."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from algorun.common.errors import UserError
from algorun_client.common import json_lines
from algorun_client.common.codes import ClientCode
from algorun_client.submit.chain import sagemaker_results, sweep_results
from algorun_client.submit.chain.sweep_results import SweepResults
from algorun_client.submit.read import job_file, sweep, task_place
from algorun_client.submit.read.common_options import add_place_options, add_where_options
from algorun_client.submit.read.source_tasks import check_metric, known_tasks

from .find_job import address_of, connected


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("job", metavar="TASK", help="a task with a sweep or a tune table in the job file")
    parser.add_argument(
        "--by",
        metavar="METRIC",
        default="",
        help="order by METRIC, max:METRIC or min:METRIC (default: the sweep's best, the tuning's goal)",
    )
    add_where_options(parser)
    add_place_options(parser)


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Returns 0."""
    sweep_results.write(results_of(options, environ, "--by", options.by), as_json=options.json)
    if options.json:
        json_lines.write_end(json_lines.LastObject())
    return ClientCode.OK


def results_of(options: argparse.Namespace, environ: Mapping[str, str], where: str, metric: str) -> SweepResults:
    """The results of the sweep or the tuning that `options.job` names. `where`: the option that gives `metric`. Raises UserError."""
    folder = Path.cwd()
    file, known = job_file.read_job_file(options.file, folder), task_place.read_place(options, environ, folder)
    task = options.job.rpartition("/")[2]
    if task not in file.sweeps and task not in file.tunes:
        raise UserError(
            options.job,
            f"{file.name} has no table [task.{task}.sweep] or [task.{task}.tune]",
            allowed=", ".join((*file.sweeps, *file.tunes)) or "none",
            fix="run this in the folder of the job file, or name it with --file",
        )
    source = known_tasks(file)[task]
    goal = sweep.parse_goal(where, metric) if metric else source.best
    if goal is not None:
        own = f"{file.sweeps[task].where} best" if task in file.sweeps else f"{file.tunes[task].where} goal"
        check_metric(where if metric else own, goal.metric, task, source.metrics)
    connection = connected(known, environ)
    address = address_of(connection, known, options.job)
    if task in file.tunes and file.tunes[task].by_sagemaker:
        return sagemaker_results.results(connection, address, file.tunes[task], goal if metric else None)
    swept = sweep_results.swept(connection.target, address, file.sweeps.get(task), file.tunes.get(task))
    return sweep_results.read_results(connection.target, address, swept, source.metrics, goal, connection.pace)
