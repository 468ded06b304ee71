"""The fourth stage of `submit`: the task is done already, or its job runs, or a new job is made."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from algorun.common.errors import UserError
from algorun_client.aws.api import Target
from algorun_client.common import json_lines, progress
from algorun_client.common.errors import ApiError, Interrupted
from algorun_client.connection import Site
from algorun_client.follow.line_text import shown
from algorun_client.request.model import Kind, Request
from algorun_client.submit.assemble.prepare import Maker
from algorun_client.submit.history import claims, done, task_file
from algorun_client.submit.history.task_file import Completed

from . import claim, kept_state
from .claim import EndedSince
from .send import in_use, send
from .telling import Telling

SHOWN = 5  # differences on a terminal; --json has all


class HowPlaced(Enum):
    """How a task got its job."""

    CREATED = auto()
    JOINED = auto()  # it runs already
    DONE = auto()  # it has completed, and nothing has changed since


@dataclass(frozen=True, slots=True)
class Placed:
    """A job that exists. Nothing of its request is kept: following may take days."""

    kind: Kind
    job: str
    number: int  # the execution
    how: HowPlaced
    series: str = ""  # of jobs that go on with each other: the same for each of them
    choices: int = 1  # kinds of hosts that the task may have


@dataclass(frozen=True, slots=True)
class SubmitFlags:
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

    execution: Completed
    differences: tuple[str, ...]


BeforeCreate: TypeAlias = "Callable[[Request], None]"


def place(
    make: Maker,
    connection: Site,
    *,
    flags: SubmitFlags,
    telling: Telling,
    before: BeforeCreate | None = None,
    last_look: Callable[[], None] | None = None,
) -> Placed:
    """Makes sure that the task has a job: its completed one if nothing has changed, its running one, or a new one.

    `before` is called with the request when all is uploaded, before a job is created; its error refuses the job.
    `last_look`: as `send`.

    Says what it does, once; only with JSON that a task is done. Raises UserError or ApiError; then no job was created. Raises
    Interrupted after Ctrl-C.
    """
    request = make(None)
    for warning in filter(telling.first, request.warnings):
        print(f"algorun: warning: {warning}", file=sys.stderr)
    placed = _created_by_lost_call(connection, make, telling) if flags.lost else None
    while placed is None:
        with contextlib.suppress(EndedSince):  # look again
            placed = _placed(connection, make, flags, telling, before, last_look)
    if placed.how is HowPlaced.JOINED:
        _say_what_it_missed(connection.target, placed, request, as_json=telling.as_json)
    return placed


def _placed(
    connection: Site,
    make: Maker,
    flags: SubmitFlags,
    telling: Telling,
    before: BeforeCreate | None,
    last_look: Callable[[], None] | None,
) -> Placed:
    """As `place`. Raises EndedSince if a job of the task has ended between the look and the claim."""
    target, address, request = connection.target, make.address, make(None)
    history = done.look(target, address)
    if history.is_new:
        task_file.write(target.store, address, history.known)
    earlier = compared(target, request, history, flags)
    if earlier:
        if not earlier.differences:
            return _done(earlier.execution, as_json=telling.as_json)
        if telling.first(f"{address.uri} differs from {earlier.execution.job}: {earlier.differences}"):
            _say_differences(earlier, as_json=telling.as_json)
    if history.running is None and not flags.clean_state:
        kept_state.say(target.store, request, telling)
    uploads = f"{address.uri}: its uploads are complete"
    shown = progress.for_command(is_silent=telling.as_json or telling.has_said(uploads))
    try:
        sent = send(
            target,
            address,
            make,
            shown,
            clean_state=flags.clean_state,
            ended=history.known.settled,
            before=before,
            last_look=last_look,
        )
    except ApiError as error:
        if error.operation.startswith("Create"):
            telling.first(uploads)
        raise
    if sent.warning:
        print(f"algorun: warning: {sent.warning}", file=sys.stderr)
    how = HowPlaced.JOINED if sent.joined else HowPlaced.CREATED
    placed = Placed(sent.request.kind, sent.request.job, sent.request.number, how)
    try:
        say_placed(connection, placed, as_json=telling.as_json)
    except KeyboardInterrupt:
        raise created_before(connection, placed) from None
    return placed


def created_before(connection: Site, placed: Placed) -> Interrupted:
    """Ctrl-C after a job was created."""
    return Interrupted(f"the job is created; come back with: {connection.follow_again(placed.job)}")


def compared(target: Target, request: Request, history: done.History, flags: SubmitFlags) -> Earlier | None:
    """The newest completed execution, if it counts: no job of the task runs, and nobody asked for a new one anyway."""
    if flags.runs_anyway or history.running is not None or history.completed is None:
        return None
    found = history.completed
    return Earlier(found, done.changes(target.store, request.address, found, request.fingerprint))


def say_without_sending(target: Target, make: Maker, request: Request, flags: SubmitFlags, task: str = "") -> None:
    """For a dry run: says if submit would send nothing, because the task is done or its job runs; else which state would go
    along. `task` stands in front, where there are several.

    Raises ApiError, or UserError if submit would refuse to remove the state of a running job.
    """
    history = done.look(target, request.address)
    running = history.running
    if running is not None and claim.is_of(running, make(running.number)):
        if flags.clean_state:
            raise in_use(running.job)
        text = f"job {running.job} (execution {running.number}) runs already: submit joins it, and sends nothing"
        print(f"algorun: {task}{text}", file=sys.stderr, flush=True)
        return
    earlier = compared(target, request, history, flags)
    if earlier is not None and not earlier.differences:
        text = f"{text_of_done(earlier.execution)}; submit sends nothing without --force"
        print(f"algorun: {task}{text}", file=sys.stderr, flush=True)
    elif running is None and not flags.clean_state:
        kept_state.say(target.store, request, Telling(as_json=False))


def text_of_done(execution: Completed | Placed) -> str:
    """Why nothing is sent."""
    return f"done already by {execution.job} (execution {execution.number}): nothing has changed"


def _created_by_lost_call(connection: Site, make: Maker, telling: Telling) -> Placed | None:
    """The job that an earlier try has created without learning it. None if there is none: the newest claim tells."""
    target = connection.target
    newest = next(claims.newest_first(target.store, make.address), None)
    if newest is None or not claim.is_of(newest, make(newest.number)) or claims.state_of(target, newest) is None:
        return None
    placed = Placed(newest.kind, newest.job, newest.number, HowPlaced.JOINED)
    say_placed(connection, placed, as_json=telling.as_json)
    return placed


def say_placed(connection: Site, placed: Placed, *, as_json: bool) -> None:
    """Says that there is a job, whether it is a new one, and where AWS's console shows it."""
    is_joined, links = placed.how is HowPlaced.JOINED, connection.links(placed.kind, placed.job)
    if as_json:
        json_lines.write("sent", job=placed.job, number=placed.number, joined=is_joined, links=dict(links))
        return
    done = "runs already" if is_joined else "is created"
    print(f"algorun: job {placed.job} (execution {placed.number}) {done}", file=sys.stderr)
    for name, address in links.items():
        print(f"algorun:   {name}: {address}", file=sys.stderr)
    sys.stderr.flush()


def _done(found: Completed, *, as_json: bool) -> Placed:
    if as_json:
        json_lines.write("done", job=found.job, number=found.number)
    return Placed(found.kind, found.job, found.number, HowPlaced.DONE)


def _say_what_it_missed(target: Target, placed: Placed, request: Request, *, as_json: bool) -> None:
    """Objects in S3 may have changed after the job that is joined was created: nothing in its request tells."""
    running = Completed(placed.number, placed.kind, placed.job)
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
