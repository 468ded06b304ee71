"""`submit` after its request is made: sends it, and follows the job."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from algorun_client.common import json_lines
from algorun_client.common.codes import ClientCode
from algorun_client.common.errors import Interrupted
from algorun_client.follow.outcome import Ending
from algorun_client.request.model import Kind, Request, TaskAddress
from algorun_client.send.progress import PlainProgress, Silent, TerminalProgress
from algorun_client.send.send import send
from algorun_client.send.uploads import Progress

from .following import follow_job
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
    *,
    clean_state: bool = False,
    ended: float,
    as_json: bool,
) -> Placed:
    """Makes one job of the request, whatever was interrupted before, and says so. `clean_state`: without checkpoints.

    `ended`, and EndedSince: as `claim.choose`. Raises UserError or ApiError; then no job was created. Raises Interrupted after Ctrl-C.
    """
    progress: Progress = Silent() if as_json else TerminalProgress() if sys.stderr.isatty() else PlainProgress()
    sent = send(connection.target, address, make, progress, clean_state=clean_state, ended=ended)
    job, kind = sent.request.job, sent.request.kind
    try:
        if as_json:
            json_lines.write("sent", job=job, number=sent.request.number, joined=sent.joined)
        else:
            done = "runs already" if sent.joined else "is created"
            print(f"algorun: job {job} (execution {sent.request.number}) {done}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        raise Interrupted(f"the job is created; come back with: {connection.follow_again(job)}") from None
    return Placed(kind, job, sent.request.number, How.JOINED if sent.joined else How.CREATED)


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
