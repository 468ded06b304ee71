"""Whether a task is done: its newest completed execution, and what that was made of."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass

from algorun.common.codec import loads
from algorun.common.errors import UserError
from algorun_client.aws.api import ObjectStore, Target
from algorun_client.common.errors import NotFound
from algorun_client.request import fingerprint
from algorun_client.request.fingerprint import Fingerprint
from algorun_client.request.model import Request, TaskAddress

from . import task_file
from .claims import Claim, numbers, read_claim, state_of
from .task_file import Completed, TaskFile

UNKNOWN = "an earlier version of algorun sent it, and kept nothing to compare with"


@dataclass(frozen=True, slots=True)
class History:
    """The executions of a task."""

    running: Claim | None  # the one whose job runs
    completed: Completed | None  # the newest completed one
    known: TaskFile  # what of it will never change
    is_new: bool  # the task's file does not say all of that


def look(target: Target, address: TaskAddress) -> History:
    """Asks for the jobs of all executions that may have changed. Writes nothing. Raises UserError for a damaged file."""
    store = target.store
    stored, taken = task_file.read_task_file(store, address), numbers(store, address)
    known = stored
    remembered = {known.settled, known.done.number if known.done else 0} - {0}
    if not remembered.issubset(taken):  # folders were removed: later executions may have their numbers again
        known = TaskFile()
    running: Claim | None = None
    settled = known.settled
    for number in reversed(taken):
        if number <= known.settled:
            break
        with contextlib.suppress(NotFound):
            claim = read_claim(store, address, number)
            state = state_of(target, claim)
            if state is None:
                continue
            if not state.ended:
                running = running or claim
                continue
            settled = max(settled, number)
            if state.status == "Completed":
                known = TaskFile(settled, Completed(number, claim.kind, claim.job))
                return History(running, known.done, known, known != stored)
    known = TaskFile(settled, known.done)
    return History(running, known.done, known, known != stored)


def newest_completed(target: Target, address: TaskAddress) -> Completed | None:
    """The newest completed execution. Only a completed one feeds another task."""
    return look(target, address).completed


def fingerprint_of(store: ObjectStore, address: TaskAddress, number: int) -> Fingerprint | None:
    """What decided the result of an execution; None if that is unknown. Raises UserError if it cannot be read."""
    uri = address.fingerprint(number)
    try:
        return fingerprint.from_json(loads(store.get(uri)))
    except NotFound:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            uri, f"is damaged ({type(error).__name__}: {error})", fix="remove this object; the task then runs again"
        ) from None


def keep_fingerprint(store: ObjectStore, request: Request) -> None:
    """To be called before the job is created: nothing has to be written when it ends, which nobody may see."""
    if request.fingerprint is not None:
        content = json.dumps(request.fingerprint.to_json(), indent=0).encode()
        store.put(request.address.fingerprint(request.number), content)


def changes(store: ObjectStore, address: TaskAddress, completed: Completed, now: Fingerprint | None) -> tuple[str, ...]:
    """What differs from a completed execution; () if nothing does, so that the task is done."""
    before = fingerprint_of(store, address, completed.number)
    if before is None or now is None:
        return (UNKNOWN,)
    return fingerprint.differences(before, now)
