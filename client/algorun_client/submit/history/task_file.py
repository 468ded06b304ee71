"""`task.json`: what is known about a task's executions for good, so that old ones need not be asked again.

It is a cache. Whatever it says can be found again from `jobs/` and SageMaker, and a file that another client wrote a
moment ago only says less: an ended job stays ended. So it is written without a condition.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass

from algorun.common.codec import loads
from algorun.common.errors import UserError
from algorun.common.json_values import shown, table, text, whole
from algorun_client.aws.api import ObjectStore
from algorun_client.common.errors import ApiError, NotFound
from algorun_client.request.model import Kind, TaskAddress

FORMAT = 1
LONGEST = 100  # characters of a name in an error


@dataclass(frozen=True, slots=True)
class Completed:
    """A completed execution."""

    number: int
    kind: Kind
    job: str


@dataclass(frozen=True, slots=True)
class TaskFile:
    """`settled`: no execution up to this number will ever change. `done`: the newest completed one of them."""

    settled: int = 0
    done: Completed | None = None


def uri(address: TaskAddress) -> str:
    """The address of the file."""
    return f"{address.uri}/task.json"


def read_task_file(store: ObjectStore, address: TaskAddress) -> TaskFile:
    """What is known; nothing if there is no file. Raises UserError if it is damaged, or of another task or version."""
    try:
        content = store.get(uri(address))
    except NotFound:
        return TaskFile()
    try:
        value = table(loads(content))
        found, names = value["format"], (text(value["project"]), text(value["task"]))
        if found == FORMAT:
            made = TaskFile(settled=whole(value["settled"]), done=_done(value["done"]))
    except (ValueError, KeyError) as error:
        raise _damaged(address, f"is damaged ({type(error).__name__}: {error})") from None
    if found != FORMAT:
        raise UserError(
            uri(address),
            f"has format {shown(found)}: another version of algorun has written it",
            allowed=f"format {FORMAT}",
            fix="install the version that you used before, or name another --task",
        )
    if names != (address.project, address.task):
        raise _damaged(address, f"is of task {names[0][:LONGEST]}/{names[1][:LONGEST]}")
    return made


def write(store: ObjectStore, address: TaskAddress, known: TaskFile) -> None:
    """Keeps what is known. A client that may not write does without."""
    done = known.done
    value = {
        "format": FORMAT,
        "project": address.project,
        "task": address.task,
        "settled": known.settled,
        "done": None if done is None else {"number": done.number, "kind": done.kind.value, "job": done.job},
    }
    with contextlib.suppress(ApiError):
        store.put(uri(address), json.dumps(value, indent=1).encode())


def _done(value: object) -> Completed | None:
    """Raises ValueError and KeyError."""
    if value is None:
        return None
    found = table(value)
    return Completed(whole(found["number"], 1), Kind(text(found["kind"])), text(found["job"]))


def _damaged(address: TaskAddress, what: str) -> UserError:
    return UserError(uri(address), what, fix="remove this object: all that it says is found again, and nothing is lost")
