"""`algorun stop`: asks a job to end early. Its ranks get SIGTERM, and 120 s to save."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from algorun_client.aws.job_state import ask_to_stop
from algorun_client.common import json_lines
from algorun_client.common.codes import ClientCode
from algorun_client.connection import Site
from algorun_client.submit.chain import sagemaker_results
from algorun_client.submit.read import task_place
from algorun_client.submit.read.common_options import add_job_argument

from .find_job import connected, find_job, tuned_by_sagemaker, tuning_job_of


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_job_argument(parser)


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Returns 0 if the job stops now or has ended already."""
    known = task_place.read_place(options, environ, Path.cwd())
    connection = connected(known, environ)
    if tuned_by_sagemaker(known, options.job) is not None:
        return _tuner(options, known, connection)
    state = find_job(connection, options.job, known)
    api = connection.target.sagemaker
    asked = state.status == "InProgress"
    if asked:
        ended = ask_to_stop(api, state.kind, state.job)
        if ended is not None:  # between the two calls
            state, asked = ended, False
    if options.json:
        json_lines.write("stop", job=state.job, asked=asked, status=state.status)
        again = "" if state.ended else connection.follow_again(state.job)
        json_lines.write_end(json_lines.LastObject(job=state.job, again=again))
    elif asked:
        print(f"job {state.job} is asked to stop; its program has 120 s to save")
        print(f"see its end with: {connection.follow_again(state.job)}")
    else:
        print(f"job {state.job}: {state.status}; nothing to stop")
    return ClientCode.OK


def _tuner(options: argparse.Namespace, known: task_place.TaskPlace, connection: Site) -> int:
    """The tuning job of SageMaker's tuner, with the jobs that run."""
    found = tuning_job_of(connection, options.job, known)
    asked = found.status == "InProgress"
    if asked:
        sagemaker_results.stop(connection, found.name)
    if options.json:
        json_lines.write("stop", job=found.name, asked=asked, status=found.status)
        json_lines.write_end(json_lines.LastObject(job=found.name))
    elif asked:
        print(f"tuning job {found.name} is asked to stop, and so are its jobs: {found.counted}")
    else:
        print(f"tuning job {found.name}: {found.status}; nothing to stop")
    return ClientCode.OK
