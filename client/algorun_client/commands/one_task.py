"""One task of `submit`: done already, running, or sent as a new job."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from algorun.common.errors import UserError
from algorun_client.common import json_lines
from algorun_client.common.errors import ApiError, Interrupted, NotFound
from algorun_client.common.refusals import Unanswered
from algorun_client.follow.line_text import shown
from algorun_client.request.facts import Facts
from algorun_client.request.model import Request
from algorun_client.request.spec import TaskSpec, Where
from algorun_client.send import claim, done, task_file
from algorun_client.send.claim import EndedSince
from algorun_client.send.send import in_use
from algorun_client.send.task_file import Done
from algorun_client.target.api import Target

from . import kept_state, submit_request
from .carry_out import How, Placed, create, say_placed
from .lookups import look_up
from .submit_request import Asked, Maker
from .telling import Telling
from .where import Connection, connect

SHOWN = 5  # differences on a terminal; --json has all


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to happen to a task that is done. `clean_state`: its checkpoints are removed, and it runs again.

    `lost`: an earlier try has called Create, and its answer was lost. A job that it has made counts, however it ended.
    """

    force: bool = False
    clean_state: bool = False
    lost: bool = False

    @property
    def runs_anyway(self) -> bool:
        """True if it runs again although nothing has changed."""
        return self.force or self.clean_state


@dataclass(frozen=True, slots=True)
class Earlier:
    """The newest completed execution, and what differs from it. () means that the task is done."""

    execution: Done
    differences: tuple[str, ...]


def place_task(
    asked: Asked, connection: Connection, environ: Mapping[str, str], *, wish: Wish, telling: Telling
) -> Placed:
    """Makes sure that the task has a job: its completed one if nothing has changed, its running one, or a new one.

    Says what it does, once; only with JSON that a task is done. Raises UserError or ApiError; then no job was created. Raises
    Interrupted after Ctrl-C.
    """
    placed = None
    try:
        with submit_request.prepared(asked, look_up_facts(asked, connection, environ)) as make:
            request = make(None)
            for warning in filter(telling.first, request.warnings):
                print(f"algorun: warning: {warning}", file=sys.stderr)
            placed = _created_by_lost_call(connection, make, telling) if wish.lost else None
            while placed is None:
                with contextlib.suppress(EndedSince):  # look again
                    placed = _placed(connection, make, request, wish, telling)
            if placed.how is How.JOINED:
                _say_what_it_missed(connection.target, placed, request, as_json=telling.as_json)
    except KeyboardInterrupt:
        if placed is not None:  # while the packed code was removed
            raise created_before(connection, placed) from None
        raise
    return placed


def connect_for(spec: TaskSpec, environ: Mapping[str, str], *, patient: bool = True) -> Connection:
    """Connects with the place where a task runs. Raises UserError."""
    return connect(
        spec.where.value,
        profile=spec.profile,
        region=spec.region,
        environ=environ,
        bucket=spec.bucket,
        kms_key=spec.kms_key,
        docker=spec.docker,
        patient=patient,
    )


def make_bucket(spec: TaskSpec, connection: Connection, *, dry_run: bool = False) -> None:
    """Makes the task's bucket if the account has none of this name, and says so. A dry run raises Unanswered in its place.

    Raises UserError for a bucket of another account or region. This machine needs no bucket.
    """
    if connection.session is None:
        return
    from algorun_client.target import account

    bucket = spec.bucket or connection.default_bucket()
    if dry_run:
        try:
            account.check_bucket(connection.session, bucket, spec.folder)
        except NotFound:
            raise Unanswered(f"bucket {bucket}", "does not exist yet: submit would make it") from None
    elif account.make_bucket(connection.session, bucket, spec.folder):
        print(f"algorun: bucket {bucket} is made in {connection.session.region}", file=sys.stderr, flush=True)


def look_up_facts(asked: Asked, connection: Connection, environ: Mapping[str, str]) -> Facts:
    """What AWS, or the folders of this machine, know about the task."""
    session = None if asked.spec.where is Where.LOCAL else connection.session
    bucket = asked.spec.bucket or connection.default_bucket()
    reading = replace(asked.reading, grace_s=connection.pace.grace_s)
    return look_up(asked.spec, connection.target, session, bucket, environ, connection.engine, reading)


def created_before(connection: Connection, placed: Placed) -> Interrupted:
    """Ctrl-C after a job was created."""
    return Interrupted(f"the job is created; come back with: {connection.follow_again(placed.job)}")


def compared(target: Target, request: Request, history: done.History, wish: Wish) -> Earlier | None:
    """The newest completed execution, if it counts: no job of the task runs, and nobody wishes a new one anyway."""
    if wish.runs_anyway or history.running is not None or history.completed is None:
        return None
    found = history.completed
    return Earlier(found, done.changes(target.store, request.address, found, request.fingerprint))


def say_without_sending(target: Target, make: Maker, request: Request, wish: Wish, task: str = "") -> None:
    """For a dry run: says if submit would send nothing, because the task is done or its job runs; else which state would go
    along. `task` stands in front, where there are several.

    Raises ApiError, or UserError if submit would refuse to remove the state of a running job.
    """
    history = done.look(target, request.address)
    running = history.running
    if running is not None and claim.is_of(running, make(running.number)):
        if wish.clean_state:
            raise in_use(running.job)
        text = f"job {running.job} (execution {running.number}) runs already: submit joins it, and sends nothing"
        print(f"algorun: {task}{text}", file=sys.stderr, flush=True)
        return
    earlier = compared(target, request, history, wish)
    if earlier is not None and not earlier.differences:
        text = f"{text_of_done(earlier.execution)}; submit sends nothing without --force"
        print(f"algorun: {task}{text}", file=sys.stderr, flush=True)
    elif running is None and not wish.clean_state:
        kept_state.say(target.store, request, Telling(as_json=False))


def text_of_done(execution: Done | Placed) -> str:
    """Why nothing is sent."""
    return f"done already by {execution.job} (execution {execution.number}): nothing has changed"


def _created_by_lost_call(connection: Connection, make: Maker, telling: Telling) -> Placed | None:
    """The job that an earlier try has created without learning it. None if there is none: the newest claim tells."""
    target = connection.target
    newest = next(claim.newest_first(target.store, make.address), None)
    if newest is None or not claim.is_of(newest, make(newest.number)) or claim.state_of(target, newest) is None:
        return None
    placed = Placed(newest.kind, newest.job, newest.number, How.JOINED)
    say_placed(connection, placed, as_json=telling.as_json)
    return placed


def _placed(connection: Connection, make: Maker, request: Request, wish: Wish, telling: Telling) -> Placed:
    """As place_task. Raises EndedSince if a job of the task has ended between the look and the claim."""
    target = connection.target
    history = done.look(target, make.address)
    if history.is_new:
        task_file.write(target.store, make.address, history.known)
    earlier = compared(target, request, history, wish)
    if earlier:
        if not earlier.differences:
            return _done(earlier.execution, as_json=telling.as_json)
        if telling.first(f"{make.address.uri} differs from {earlier.execution.job}: {earlier.differences}"):
            _say_differences(earlier, as_json=telling.as_json)
    if history.running is None and not wish.clean_state:
        kept_state.say(target.store, request, telling)
    ended = history.known.settled
    return create(connection, make.address, make, telling, clean_state=wish.clean_state, ended=ended)


def _done(found: Done, *, as_json: bool) -> Placed:
    if as_json:
        json_lines.write("done", job=found.job, number=found.number)
    return Placed(found.kind, found.job, found.number, How.DONE)


def _say_what_it_missed(target: Target, placed: Placed, request: Request, *, as_json: bool) -> None:
    """Objects in S3 may have changed after the job that is joined was created: nothing in its request tells."""
    running = Done(placed.number, placed.kind, placed.job)
    try:
        found = done.changes(target.store, request.address, running, request.fingerprint)
    except (UserError, ApiError):  # the job is joined in any case
        return
    if not found or found == (done.UNKNOWN,):
        return
    text = f"{'; '.join(map(shown, found[:SHOWN]))}{'; ..'[: 4 * (len(found) > SHOWN)]}"
    text = f"job {placed.job} may not see what has changed since it was created ({text}); submit again after its end"
    if as_json:
        json_lines.write("note", text=text)
    else:
        print(f"algorun: warning: {text}", file=sys.stderr, flush=True)


def _say_differences(earlier: Earlier, *, as_json: bool) -> None:
    found = earlier.differences
    if as_json:
        json_lines.write("changed", job=earlier.execution.job, differences=list(found))
        return
    if found == (done.UNKNOWN,):
        print(f"algorun: runs again after {earlier.execution.job}: {done.UNKNOWN}", file=sys.stderr, flush=True)
        return
    print(f"algorun: runs again, because of what has changed since {earlier.execution.job}:", file=sys.stderr)
    for line in found[:SHOWN]:
        print(f"algorun:   {shown(line)}", file=sys.stderr)
    if len(found) > SHOWN:
        print(f"algorun:   and {len(found) - SHOWN} more", file=sys.stderr, flush=True)
