"""Which job a command is about: TASK, PROJECT/TASK or a job's name, from any folder and machine."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

from algorun.common.errors import UserError
from algorun_client.aws.job_state import JobState, describe, find
from algorun_client.aws.tuning_jobs import TuningJob
from algorun_client.common.errors import NotFound
from algorun_client.connection import Site, connect
from algorun_client.request import names
from algorun_client.request.model import TaskAddress
from algorun_client.submit.chain import sagemaker_results, sweep_results
from algorun_client.submit.chain.sweep_results import SweptPoints
from algorun_client.submit.history import claims
from algorun_client.submit.read import sweep, task_place
from algorun_client.submit.read.tune import TaskTune

SHOWN = 5  # points of a sweep
JOB = re.compile(r".+-\d{4,}-[0-9a-f]{6}")  # as request.names.job_name makes them


def open_job(options: argparse.Namespace, environ: Mapping[str, str]) -> tuple[Site, JobState]:
    """Connects and finds the job that the options name. Raises UserError."""
    known = task_place.read_place(options, environ, Path.cwd())
    connection = connected(known, environ)
    return connection, find_job(connection, options.job, known)


def connected(known: task_place.TaskPlace, environ: Mapping[str, str]) -> Site:
    """Connects with a place. Raises UserError."""
    return connect(known.where, profile=known.profile, region=known.region, environ=environ, bucket=known.bucket)


def address_of(connection: Site, known: task_place.TaskPlace, text: str) -> TaskAddress:
    """Where the task lies that `text` names. Raises UserError for no name, and for a bucket of another region.

    S3 would answer from there, with jobs of which SageMaker knows nothing in this region.
    """
    address = task_place.task_address(known, text, connection.default_bucket())
    if connection.session is not None and known.bucket:
        from algorun_client.aws import account

        account.check_region(connection.session, known.bucket)
    return address


def find_job(connection: Site, text: str, known: task_place.TaskPlace) -> JobState:
    """The job that `text` names. A task stands for its newest job. Raises UserError, also for a sweep, which has several."""
    if tuned_by_sagemaker(known, text) is not None:
        line = f"algorun results {text}{connection.options}"
        raise UserError(
            text, "is tuned by SageMaker, and its jobs are no tasks", fix=f"name one of the jobs that `{line}` lists"
        )
    swept = points_of(connection, text, known)
    if swept is not None:
        raise _has_points(text, swept, connection.options)
    slash = "/" in text
    if not slash and JOB.fullmatch(text):
        state = find(connection.target.sagemaker, text)
        if state is not None:
            return state
    looked = []
    if slash or len(text) <= names.LONGEST:  # longer ones are names of other programs' jobs
        try:
            address = address_of(connection, known, text)
        except UserError:
            state = None if slash else find(connection.target.sagemaker, text)
            if state is not None:  # a job of another program has nothing to do with the bucket
                return state
            raise
        looked.append(address.uri)
        state = _newest(connection, address)
        if state is not None:
            return state
    state = None if slash else find(connection.target.sagemaker, text)
    if state is not None:
        return state
    looked += [] if slash else ["the names of all jobs"]
    region = f" in {connection.session.region}" if connection.session else ""
    raise UserError(
        text,
        f"no job is found{region}; looked in {' and '.join(looked)}",
        fix="PROJECT/TASK, --bucket, --prefix, --region or --where as the job was submitted; `algorun ls` lists jobs",
    )


def points_of(connection: Site, text: str, known: task_place.TaskPlace) -> SweptPoints | None:
    """The points of the task that `text` names, if it has a sweep or a tune table; None for another task, and for a job."""
    swept, tuned = task_place.sweep_of(known, text), task_place.tune_of(known, text)
    if swept is None and tuned is None:
        return None
    address = address_of(connection, known, text)
    return sweep_results.swept(connection.target, address, swept, tuned)


def tuned_by_sagemaker(known: task_place.TaskPlace, text: str) -> TaskTune | None:
    """The tune table of the task that `text` names, if SageMaker's tuner creates its jobs."""
    tuned = task_place.tune_of(known, text)
    return tuned if tuned is not None and tuned.by_sagemaker else None


def tuning_job_of(connection: Site, text: str, known: task_place.TaskPlace) -> TuningJob:
    """The newest tuning job of such a task. Raises UserError if there is none."""
    found = sagemaker_results.newest(connection, address_of(connection, known, text))
    if found is None:
        fix = f"algorun submit --task {text.rpartition('/')[2]}"
        raise UserError(text, "has no tuning job in SageMaker yet", fix=fix)
    return found


def _has_points(text: str, swept: SweptPoints, options: str) -> UserError:
    points = [sweep.point_task(text.rpartition("/")[2], point) for point in swept.sweep.points]
    if not points:
        return UserError(
            text, "is a tuning that has no points yet", fix=f"algorun submit --task {text.rpartition('/')[2]}"
        )
    more = f" and {len(points) - SHOWN} more" if len(points) > SHOWN else ""
    return UserError(
        text,
        f"is a sweep of {len(points)} points, each a task of its own: {', '.join(points[:SHOWN])}{more}",
        fix=f"name a point, such as `{points[0]}{options}`; `algorun status {text}{options}` shows all of them",
    )


def _newest(connection: Site, address: TaskAddress) -> JobState | None:
    begun = None
    for found in claims.newest_first(connection.target.store, address):
        try:
            return describe(connection.target.sagemaker, found.kind, found.job)
        except NotFound:  # its client has died, or is still sending
            begun = begun or found
    if begun is None:
        return None
    raise UserError(
        f"task {address.project}/{address.task}",
        f"execution {begun.number} was begun, but its job {begun.job} was never created",
        fix="submit it again: what was uploaded is used",
    )
