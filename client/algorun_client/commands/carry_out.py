"""`submit` after its request is made: sends it, and follows the job."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from algorun_client.common import json_lines
from algorun_client.common.codes import ClientCode
from algorun_client.common.errors import ApiError, Interrupted
from algorun_client.follow.outcome import Ending
from algorun_client.request.model import Kind, Request, TaskAddress
from algorun_client.send.progress import PlainProgress, Silent, TerminalProgress
from algorun_client.send.send import send
from algorun_client.send.uploads import Progress

from .following import follow_job
from .telling import Telling
from .where import Connection


class How(Enum):
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
    how: How


def create(
    connection: Connection,
    address: TaskAddress,
    make: Callable[[int], Request],
    telling: Telling,
    *,
    clean_state: bool = False,
    ended: float,
) -> Placed:
    """Makes one job of the request, whatever was interrupted before, and says so. `clean_state`: without checkpoints.

    `ended`, and EndedSince: as `claim.choose`. Raises UserError or ApiError; then no job was created. Raises Interrupted after Ctrl-C.
    """
    uploads = f"{address.uri}: its uploads are complete"
    is_silent = telling.as_json or telling.has_said(uploads)
    progress: Progress = Silent() if is_silent else TerminalProgress() if sys.stderr.isatty() else PlainProgress()
    try:
        sent = send(connection.target, address, make, progress, clean_state=clean_state, ended=ended)
    except ApiError as error:
        if error.operation.startswith("Create"):
            telling.first(uploads)
        raise
    how = How.JOINED if sent.joined else How.CREATED
    placed = Placed(sent.request.kind, sent.request.job, sent.request.number, how)
    try:
        say_placed(connection, placed, as_json=telling.as_json)
    except KeyboardInterrupt:
        raise Interrupted(f"the job is created; come back with: {connection.follow_again(placed.job)}") from None
    return placed


def say_placed(connection: Connection, placed: Placed, *, as_json: bool) -> None:
    """Says that there is a job, whether it is a new one, and where AWS's console shows it."""
    is_joined, links = placed.how is How.JOINED, connection.links(placed.kind, placed.job)
    if as_json:
        json_lines.write("sent", job=placed.job, number=placed.number, joined=is_joined, links=dict(links))
        return
    done = "runs already" if is_joined else "is created"
    print(f"algorun: job {placed.job} (execution {placed.number}) {done}", file=sys.stderr)
    for name, address in links.items():
        print(f"algorun:   {name}: {address}", file=sys.stderr)
    sys.stderr.flush()


def follow_or_leave(connection: Connection, placed: Placed, *, as_json: bool, detach: bool) -> int:
    """What comes after a task has its job. Returns the exit code."""
    if placed.how is How.DONE:
        if as_json:
            json_lines.write_end(json_lines.End(job=placed.job))
        return ClientCode.OK
    if detach:
        again = connection.follow_again(placed.job)
        if as_json:
            json_lines.write_end(json_lines.End(kind=Ending.DETACHED.value, job=placed.job, again=again))
        else:
            print(f"algorun: follow it with: {again}", file=sys.stderr)
        return ClientCode.OK
    return follow_job(connection, placed.kind, placed.job, as_json=as_json)
