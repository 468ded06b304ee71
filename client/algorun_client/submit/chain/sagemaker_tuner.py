"""`tuner = "sagemaker"`: SageMaker's tuner chooses the points of a task and creates their jobs, in one tuning job.

The laptop may be closed meanwhile. The same line finds the tuning job again: its name follows from the task's folder in the
bucket and from the number of the tuning, which is written there before the tuning job is created.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from algorun.common.errors import UserError
from algorun_client.aws.service_model import tuning_shape
from algorun_client.aws.tuning_jobs import TuningJob
from algorun_client.common import json_lines
from algorun_client.common.codes import ClientCode
from algorun_client.common.errors import Exists, Interrupted
from algorun_client.common.json_lines import LastObject
from algorun_client.common.progress import for_command
from algorun_client.common.refusals import Unanswered
from algorun_client.connection import Site
from algorun_client.follow.outcome import Ending
from algorun_client.request import limits
from algorun_client.request.codec import without_secrets
from algorun_client.request.fingerprint import Fingerprint
from algorun_client.request.model import Json, Request, TaskAddress
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
from algorun_client.submit.read.tune import TaskTune
from algorun_client.submit.submit import connect_for, make_bucket

from . import sagemaker_results, tuning
from .chain_view import ChainView, JsonChainView, PlainChainView
from .sweep_results import COMPLETED


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
    return sagemaker_results.follow(name, order, asked, connection, view, as_json=how.as_json)


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
        earlier = sagemaker_results.newest(connection, address)
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
        if not flags.runs_anyway and not begun.by_sagemaker:
            tuning.check_begun(asked, connection.target, make.address)
        earlier = sagemaker_results.newest(connection, make.address)
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
        sagemaker_results.api_of(connection).create(dict(request.create))
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


def _free_number(history: TuneHistory, connection: Site, address: TaskAddress, begun: TuningBegun | None) -> int:
    """The number of a new tuning. One whose tuning job exists is left out: somebody has removed the task's folder since, and
    SageMaker takes a name once."""
    number = begun.number + 1 if begun else 1
    while sagemaker_results.numbered(connection, address, number) is not None:
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
    elif earlier.status == sagemaker_results.STOPPED:
        view.note(f"tuning job {earlier.name} was stopped; --force begins another one")
    else:
        view.note(f"{'is done by' if earlier.has_ended else 'joins'} tuning job {earlier.name}")
    return not changed
