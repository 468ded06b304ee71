"""A tuning job of SageMaker's tuner that exists: its state, its table, its end.

Its name follows from the task's folder in the bucket and from the number of the tuning, which is written there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from algorun.common.errors import UserError
from algorun_client.aws.job_state import describe
from algorun_client.aws.tuning_jobs import TunedJob, TuningJob, TuningJobs
from algorun_client.common import json_lines
from algorun_client.common.codes import ClientCode, Source, kind_of
from algorun_client.common.errors import ApiError, Interrupted, NotFound
from algorun_client.common.json_lines import LastObject
from algorun_client.common.refusals import Refusal, explained, refusal
from algorun_client.connection import Site
from algorun_client.follow.contact import Contact
from algorun_client.follow.outcome import Ending, judge
from algorun_client.request import names
from algorun_client.request.model import Kind, TaskAddress
from algorun_client.submit.history.tune_history import TuneHistory
from algorun_client.submit.read.read import SubmitOrder
from algorun_client.submit.read.sweep import Goal, from_hyperparameter
from algorun_client.submit.read.tune import TaskTune

from . import sweep_results
from .chain_view import ChainView
from .sweep_results import Row, SweepResults

STOPPED = "Stopped"
STOPPING = ("Stopping", STOPPED)
FLOAT_ERROR = 2.0**-24  # at most, of a float of 32 bits: a part of its value


def newest(connection: Site, address: TaskAddress) -> TuningJob | None:
    """The task's newest tuning job; None without one. Raises UserError."""
    begun = TuneHistory(connection.target.store, address).newest()
    if begun is None or connection.session is None or not begun.by_sagemaker:
        return None
    return numbered(connection, address, begun.number)


def numbered(connection: Site, address: TaskAddress, number: int) -> TuningJob | None:
    """The tuning job of the task's tuning of this number; None without one. Raises UserError."""
    try:
        return api_of(connection).describe(names.tuning_job_name(address, number))
    except NotFound:  # its client has died, or is still sending
        return None
    except ApiError as error:
        raise explained(error) from None


def api_of(connection: Site) -> TuningJobs:
    """The calls to SageMaker. Not for a connection with this machine."""
    assert connection.session is not None  # tuning_job.check
    return TuningJobs(connection.session.client("sagemaker"))


def stop(connection: Site, name: str) -> None:
    """Asks a tuning job to create no further jobs, and to stop those that run. Raises UserError."""
    try:
        api_of(connection).stop(name)
    except ApiError as error:
        raise explained(error) from None


def results(connection: Site, address: TaskAddress, asked: TaskTune, goal: Goal | None) -> SweepResults:
    """The jobs of the newest tuning job, whose own goal and parameters count: the table of the job file may have changed since.

    Raises UserError, also if `goal` is another one: SageMaker tells no other.
    """
    found = newest(connection, address)
    own = asked.goal if found is None else Goal(found.metric, found.lowest)
    if goal not in (None, own):
        raise UserError(
            goal.text, f"SageMaker tells the values of the tuning's goal alone: {own.text}",
            fix="leave the metric out; `algorun fetch JOB` has all values of a job",
        )  # fmt: skip
    if found is None:
        return SweepResults(task=address.task, names=tuple(asked.space), goal=own, rows=())
    try:
        return _results(found, api_of(connection).jobs(found.name), address.task)
    except ApiError as error:
        raise explained(error) from None


def _results(state: TuningJob, jobs: list[TunedJob], task: str) -> SweepResults:
    # Hyperband also stops a job that has reached its last step, maybe before it ends by itself.
    counts = state.is_hyperband and state.status not in STOPPING
    rows = [
        Row(
            task=each.job,
            parameters=tuple(_value(state, name, each.parameters.get(name, "")) for name in state.parameters),
            status=each.status,
            job=each.job,
            text=_text(each.value),
            counts=counts and each.status == STOPPED,
        )
        for each in jobs
    ]
    goal = Goal(state.metric, state.lowest)
    return SweepResults(task=task, names=state.parameters, goal=goal, rows=sweep_results.ordered(rows, goal))


def _value(state: TuningJob, name: str, text: str) -> str:
    return text if name in state.in_words else from_hyperparameter(name, text)


def _text(value: float | None) -> str:
    """A value without the digits that it has from SageMaker's floats of 32 bits: 0.9278 for 0.9277999997138977."""
    if value is None:
        return ""
    for digits in range(6, 10):
        text = f"{value:.{digits}g}"
        if abs(float(text) - value) <= abs(value) * FLOAT_ERROR:
            return text
    return repr(value)


def follow(name: str, order: SubmitOrder, asked: TaskTune, connection: Site, view: ChainView, *, as_json: bool) -> int:
    """Says how far the tuning job is, until it has ended; then its table. Returns the exit code."""
    api = api_of(connection)
    try:
        state = _to_its_end(api, name, Contact(view, connection.pace.silence_s), view, connection.pace.state_s)
        jobs = api.jobs(name)
        found = _results(state, jobs, order.spec.task)
        end = _end(connection, state, found, asked, order.reading.known[order.spec.task].metrics)
        sweep_results.write(found, as_json=as_json)
    except KeyboardInterrupt as stop:
        text = f"tuning job {name} runs on; the same line follows it again, `algorun stop {order.spec.task}` ends it"
        if isinstance(stop, Interrupted) and stop.hanging:
            raise Interrupted(text, hanging=True) from None
        end = LastObject(code=ClientCode.DETACHED, kind=Ending.DETACHED, job=name, text=text)
    except ApiError as error:
        raise explained(error) from None
    if as_json:
        json_lines.write_end(end)
    else:
        view.note(f"{end.text}: exit {end.code}, kind={end.kind} source={end.source}")
    return end.code


def _to_its_end(api: TuningJobs, name: str, contact: Contact, view: ChainView, every_s: float) -> TuningJob:
    """Raises UserError if AWS cannot be asked any more."""
    said = ""
    while True:
        try:
            state = api.describe(name)
            contact.complete()
        except ApiError as error:
            problem = explained(error)
            is_throttled = refusal(error) is Refusal.THROTTLED
            if problem.code != ClientCode.CONTACT_LOST or contact.is_lost:
                raise problem from None
            contact.tell(
                "AWS limits the calls of this account at the moment"
                if is_throttled
                else f"no answer from AWS ({problem.what})"
            )
        else:
            text = f"tuning job {name}: {state.status}, {state.counted}"
            if text != said:
                view.note(text)
                said = text
            if state.has_ended:
                return state
        time.sleep(every_s)


def _end(
    connection: Site, state: TuningJob, found: SweepResults, asked: TaskTune, metrics: Mapping[str, str]
) -> LastObject:
    """How the command ends: well if a job has a value, else as the first job that failed."""
    text = f"tuning job {state.name}: {state.counted}"
    if found.best is not None:
        return LastObject(job=state.name, kind=Ending.COMPLETED, source=Source.JOB, text=text)
    silent = next((each for each in found.rows if each.status == "Completed"), None)
    if silent is not None:
        error = UserError(
            f"{asked.where} goal",
            f"job {silent.job} has completed, and SageMaker found no number for metric {asked.goal.metric!r} in its lines, whose "
            f"regular expression is {metrics[asked.goal.metric]!r}",
            allowed=f"metrics of the task: {', '.join(metrics)}",
            fix=f"look at its lines with `algorun logs {silent.job}`, and correct the expression; --force begins another tuning job",
        )
        return LastObject(job=state.name, code=error.code, kind=kind_of(error.code), text=f"{text}; {error}")
    failed = next((each for each in found.rows if each.status == "Failed"), None)
    if failed is not None:
        judged = judge(describe(connection.target.sagemaker, Kind.TRAINING, failed.job))
        text = f"{text}; the first that failed, {failed.job}: {judged.text}"
        return LastObject(job=state.name, code=judged.code, kind=judged.kind, source=judged.source, text=text)
    if state.status == STOPPED:
        return LastObject(job=state.name, code=ClientCode.STOPPED, kind=Ending.STOPPED, source=Source.JOB, text=text)
    return LastObject(job=state.name, code=1, kind=Ending.FAILED, source=Source.JOB, text=f"{text}; {state.reason}")
