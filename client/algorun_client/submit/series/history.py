"""The jobs of a series that have ended, as the task's folder in the bucket and SageMaker know them. Reads only."""

from __future__ import annotations

from algorun_client.aws.api import Target
from algorun_client.common.errors import NotFound
from algorun_client.request.model import TaskAddress
from algorun_client.submit.history import claims

from . import job_begin
from .next_job import EndedJob, end_of_hosts


def ended_jobs(target: Target, address: TaskAddress, series: str, *, newest: int | None = None) -> list[EndedJob]:
    """The newest first. The list ends before a job that completed, failed for good, or was made for another request.

    `newest`: a job that counts whatever it was made for, because somebody follows it. Raises UserError or ApiError.
    """
    found: list[EndedJob] = []
    left = job_begin.state_now(target.store, address)
    for number in reversed(claims.numbers(target.store, address)):
        begin = job_begin.read_begin(target.store, address, number)
        is_of_series = begin is not None and begin.series == series
        if not is_of_series and number != newest:
            if _has_job(target, address, number):
                break
            continue
        try:
            state = claims.state_of(target, claims.read_claim(target.store, address, number))
        except NotFound:
            state = None
        if state is None:
            continue
        if state.ended:
            if not end_of_hosts(state) and number != newest:
                break
            choice = begin.choice if begin is not None and is_of_series else 0
            before = begin.state if begin is not None else None
            found.append(EndedJob(number=number, state=state, choice=choice, found=before, left=left))
        if begin is None or not is_of_series or begin.is_first:
            break
        left = begin.state
    return found


def _has_job(target: Target, address: TaskAddress, number: int) -> bool:
    try:
        return claims.state_of(target, claims.read_claim(target.store, address, number)) is not None
    except NotFound:
        return False
