"""`tuner = "sagemaker"`: SageMaker's tuner chooses the points of a task and creates their jobs, in one tuning job.

The laptop may be closed meanwhile. The same line finds the tuning job again: its name follows from the task's folder in the
bucket and from the number of the tuning, which is written there before the tuning job is created.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from algorun.common.errors import UserError
from algorun_client.aws.job_state import describe
from algorun_client.aws.service_model import tuning_shape
from algorun_client.aws.tuning_jobs import TunedJob, TuningJob, TuningJobs
from algorun_client.common import json_lines
from algorun_client.common.codes import ClientCode, Source, kind_of
from algorun_client.common.errors import ApiError, Exists, Interrupted, NotFound
from algorun_client.common.json_lines import LastObject
from algorun_client.common.progress import for_command
from algorun_client.common.refusals import Refusal, Unanswered, explained, refusal
from algorun_client.connection import Site
from algorun_client.follow.contact import Contact
from algorun_client.follow.outcome import Ending, judge
from algorun_client.request import limits, names
from algorun_client.request.codec import without_secrets
from algorun_client.request.fingerprint import Fingerprint
from algorun_client.request.model import Json, Kind, Request, TaskAddress
from algorun_client.submit.assemble import prepare, tuning_job
from algorun_client.submit.assemble.assemble import task_address
from algorun_client.submit.history.tune_history import TuneHistory, TuningBegun
from algorun_client.submit.look_up.facts import Facts
from algorun_client.submit.look_up.look_up import look_up
from algorun_client.submit.place.place import SubmitFlags
from algorun_client.submit.place.uploads import upload
from algorun_client.submit.read import sweep, tune
from algorun_client.submit.read.read import SubmitOrder
from algorun_client.submit.read.source_tasks import filled
from algorun_client.submit.read.sweep import Goal
from algorun_client.submit.read.tune import TaskTune
from algorun_client.submit.submit import connect_for, make_bucket

from . import sweep_results, tuning
from .chain_view import ChainView, JsonChainView, PlainChainView
from .sweep_results import COMPLETED, Row, SweepResults

STOPPED = "Stopped"
STOPPING = ("Stopping", STOPPED)
FLOAT_ERROR = 2.0**-24  # at most, of a float of 32 bits: a part of its value


@dataclass(frozen=True, slots=True)
class TunerOptions:
    """How the command is to end, and how it speaks."""

    detach: bool
    as_json: bool
    dry_run: bool
    create_bucket: bool


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a tuning job is made of."""

    request: Request  # of a training job at the first values
    create: Mapping[str, Json]


class _Maker:
    """Makes the request of the task's tuning of any number."""

    def __init__(self, order: SubmitOrder, asked: TaskTune, facts: Facts, make: prepare.Maker) -> None:
        self._asked, self._facts, self._make = asked, facts, make
        self._spec = order.spec
        marked = filled(tuning_job.marked(order.spec, asked), facts.values)
        self._started = order.of(marked).started

    @property
    def address(self) -> TaskAddress:
        return self._make.address

    def __call__(self, number: int) -> _Asked:
        """Raises UserError."""
        request = self._make(None)
        create = tuning_job.create(request, self._started, self._spec, self._asked, number, self._facts.image_format)
        limits.check(tuning_shape(), create, [f"TrainingJobDefinition.{path}" for path in request.unknown])
        return _Asked(request, create)


def run(order: SubmitOrder, asked: TaskTune, environ: Mapping[str, str], flags: SubmitFlags, how: TunerOptions) -> int:
    """Returns the exit code. Raises UserError before anything is uploaded or created."""
    tuning_job.check(order.spec, asked)
    if flags.clean_state:
        raise UserError("--clean-state", "the jobs of SageMaker's tuner have no state in the bucket", fix="drop it")
    connection = connect_for(order.spec, environ, patient=not how.dry_run)
    if how.dry_run:
        return _print(order, asked, connection, environ, how)
    if how.create_bucket:
        make_bucket(order.spec, connection)
    view: ChainView = JsonChainView() if how.as_json else PlainChainView()
    with _made(order, asked, look_up(order.spec, order.reading, connection, environ)) as make:
        name = _placed(make, order, asked, connection, flags, view, how)
    if how.detach:
        again = f"algorun results {order.spec.task}{connection.options}"
        if how.as_json:
            json_lines.write_end(LastObject(kind=Ending.DETACHED, job=name, again=again))
        else:
            view.note(f"see its jobs with: {again}")
        return ClientCode.OK
    return _follow(name, order, asked, connection, view, as_json=how.as_json)


@contextmanager
def _made(order: SubmitOrder, asked: TaskTune, facts: Facts) -> Iterator[_Maker]:
    """Packs the code. Raises UserError for what is wrong at either end of the space."""
    for spec in tune.check_space(order.spec, asked):
        prepare.check(order.of(spec), facts)
    first = {name: each.ends[0] for name, each in asked.space.items()}
    with prepare.prepared(order.of(sweep.with_values(order.spec, asked.where, first)), facts) as make:
        yield _Maker(order, asked, facts, make)


def _print(order: SubmitOrder, asked: TaskTune, connection: Site, environ: Mapping[str, str], how: TunerOptions) -> int:
    """The request of the tuning job, and what would be uploaded."""
    number = 1
    try:
        if how.create_bucket:
            make_bucket(order.spec, connection, dry_run=True)
        facts = look_up(order.spec, order.reading, connection, environ)
        address = task_address(order.spec, facts)
        history = TuneHistory(connection.target.store, address)
        earlier = newest(connection, address)
        number = _free_number(history, connection, address, history.newest())
        if earlier is not None:
            print(f"algorun: tuning job {earlier.name} exists: {earlier.status}, {earlier.counted}", file=sys.stderr)
    except Unanswered as error:
        facts = Facts()
        print(f"algorun: not looked up: {error}", file=sys.stderr)
    with _made(order, asked, facts) as make:
        made = make(number)
    if how.as_json:
        print(json.dumps({"operation": "CreateHyperParameterTuningJob", "create": dict(made.create)}))
    else:
        print(f"tuning job {made.create['HyperParameterTuningJobName']}: nothing is sent\n")
        print(json.dumps(without_secrets(made.create), indent=1))
        print(f"\nuploads: {len(made.request.uploads)}")
        for warning in made.request.warnings:
            print(f"warning: {warning}")
    return ClientCode.OK


def newest(connection: Site, address: TaskAddress) -> TuningJob | None:
    """The task's newest tuning job; None without one. Raises UserError."""
    begun = TuneHistory(connection.target.store, address).newest()
    if begun is None or connection.session is None or not _is_ours(begun):
        return None
    return _described(connection, address, begun.number)


def _described(connection: Site, address: TaskAddress, number: int) -> TuningJob | None:
    try:
        return _api(connection).describe(names.tuning_job_name(address, number))
    except NotFound:  # its client has died, or is still sending
        return None
    except ApiError as error:
        raise explained(error) from None


def stop(connection: Site, name: str) -> None:
    """Asks a tuning job to create no further jobs, and to stop those that run. Raises UserError."""
    try:
        _api(connection).stop(name)
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
        return _results(found, _api(connection).jobs(found.name), address.task)
    except ApiError as error:
        raise explained(error) from None


def _results(state: TuningJob, jobs: list[TunedJob], task: str) -> SweepResults:
    # Hyperband also stops a job that has reached its last step, maybe before it ends by itself.
    counts = state.is_hyperband and state.status not in STOPPING
    rows = [
        Row(
            task=each.job,
            parameters=tuple(each.parameters.get(name, "") for name in state.parameters),
            status=each.status,
            job=each.job,
            text=_text(each.value),
            counts=counts and each.status == STOPPED,
        )
        for each in jobs
    ]
    goal = Goal(state.metric, state.lowest)
    return SweepResults(task=task, names=state.parameters, goal=goal, rows=sweep_results.ordered(rows, goal))


def _text(value: float | None) -> str:
    """A value without the digits that it has from SageMaker's floats of 32 bits: 0.9278 for 0.9277999997138977."""
    if value is None:
        return ""
    for digits in range(6, 10):
        text = f"{value:.{digits}g}"
        if abs(float(text) - value) <= abs(value) * FLOAT_ERROR:
            return text
    return repr(value)


def _api(connection: Site) -> TuningJobs:
    assert connection.session is not None  # tuning_job.check
    return TuningJobs(connection.session.client("sagemaker"))


def _placed(
    make: _Maker,
    order: SubmitOrder,
    asked: TaskTune,
    connection: Site,
    flags: SubmitFlags,
    view: ChainView,
    how: TunerOptions,
) -> str:
    """The name of the task's tuning job, which runs, or is done, or is created now. Raises UserError or ApiError."""
    history = TuneHistory(connection.target.store, make.address)
    begun, made_of, number = history.newest(), make(1).request.fingerprint, 0
    if begun is not None:
        if not flags.runs_anyway and not _is_ours(begun):
            tuning.check_begun(asked, connection.target, make.address)
        earlier = newest(connection, make.address)
        is_wanted = earlier is not None and not flags.runs_anyway
        if earlier is not None and is_wanted and _goes_on(begun, earlier, asked, made_of, order.spec.task, view):
            return earlier.name
        if earlier is not None and not earlier.has_ended:
            raise UserError(
                "--force",
                f"tuning job {earlier.name} runs",
                fix=f"`algorun stop {order.spec.task}` first, or drop --force",
            )
        if earlier is None and begun.asked == asked.to_json() and not tuning.changes(begun.fingerprint, made_of):
            # Its client has died, or sends it at this moment: the same name makes no second one.
            number = begun.number
    number = number or _free_number(history, connection, make.address, begun)
    request = make(number)
    name = str(request.create["HyperParameterTuningJobName"])
    for warning in request.request.warnings:
        view.note(f"warning: {warning}")
    upload(connection.target.store, request.request, dict, for_command(is_silent=how.as_json))
    try:
        _check_begun(asked, history.begin(number, asked.to_json(), made_of), made_of, name)
        _api(connection).create(dict(request.create))
    except KeyboardInterrupt:
        raise Interrupted(
            "the tuning job was about to be created; the same line joins it, and makes no second one"
        ) from None
    except Exists:  # the same, or the answer to an earlier try was lost
        view.note(f"joins tuning job {name}")
        return name
    left = asked.points - tuning_job.points(order.spec, asked)
    bounded = (
        f"; {left} of {asked.points} points are left out: with them it could cost more than --max-cost" if left else ""
    )
    count = asked.points - left
    view.note(
        f"created tuning job {name}: {count} job{'s'[: count != 1]}, {min(asked.parallel, count)} at a time{bounded}"
    )
    return name


def _is_ours(begun: TuningBegun) -> bool:
    return begun.asked.get("tuner") == "sagemaker"


def _free_number(history: TuneHistory, connection: Site, address: TaskAddress, begun: TuningBegun | None) -> int:
    """The number of a new tuning. One whose tuning job exists is left out: somebody has removed the task's folder since, and
    SageMaker takes a name once."""
    number = begun.number + 1 if begun else 1
    while _described(connection, address, number) is not None:
        now = history.newest()
        if now is not None and now.number >= number:  # another client has begun it just now
            return now.number
        number += 1
    return number


def _check_begun(asked: TaskTune, begun: TuningBegun, made_of: Fingerprint | None, name: str) -> None:
    """Raises UserError if another client has begun the tuning just now, with another table or other code."""
    tuning.check_same(asked, begun)
    if changed := tuning.changes(begun.fingerprint, made_of):
        raise UserError(
            f"tuning job {name}",
            f"another client has just begun it, with other things: {'; '.join(changed[: tuning.SHOWN])}",
            fix="the same line again says what can be done",
        )


def _goes_on(
    begun: TuningBegun, earlier: TuningJob, asked: TaskTune, made_of: Fingerprint | None, task: str, view: ChainView
) -> bool:
    """True if an earlier tuning job is what is asked for: it runs, or has completed.

    Raises UserError if it is of another table, or runs with what was changed since.
    """
    # One that has completed had values, also if hyperband has stopped each of its jobs.
    if earlier.has_ended and earlier.status != COMPLETED and not earlier.completed:
        view.note(f"tuning job {earlier.name}: {earlier.status}, and no job of it has completed; another one follows")
        return False
    tuning.check_same(asked, begun)
    changed = tuning.changes(begun.fingerprint, made_of)
    if changed and not earlier.has_ended:
        raise UserError(
            f"tuning job {earlier.name}", f"runs, and this has changed since: {'; '.join(changed[: tuning.SHOWN])}",
            fix=f"`algorun stop {task}` first, or take the change back to join it",
        )  # fmt: skip
    if changed:
        view.note(tuning.text_of_anew(task, changed))
    elif earlier.status == STOPPED:
        view.note(f"tuning job {earlier.name} was stopped; --force begins another one")
    else:
        view.note(f"{'is done by' if earlier.has_ended else 'joins'} tuning job {earlier.name}")
    return not changed


def _follow(name: str, order: SubmitOrder, asked: TaskTune, connection: Site, view: ChainView, *, as_json: bool) -> int:
    """Says how far the tuning job is, until it has ended; then its table. Returns the exit code."""
    api = _api(connection)
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
