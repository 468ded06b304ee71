"""The state of a task in the bucket: its checkpoints, and in `SSM_INSTANCE_STATE` a folder for each host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from algorun_client.aws.api import ObjectStore, StoredObject
from algorun_client.common.errors import NotFound
from algorun_client.request.model import TaskAddress

CHECKPOINT = re.compile(r"(?:^|/)step-([0-9]{8,})/part-[0-9]+-of-[0-9]+\.pt$")  # as `ddp` and `pipeline` name them
MOST_LISTED = 10_000  # objects that a summary counts: ten calls of S3


@dataclass(frozen=True, slots=True)
class StateFolder:
    """A folder directly below the state; `name` is "" for the files beside the folders."""

    name: str
    files: int
    size: int  # bytes
    modified: datetime  # the newest file


@dataclass(frozen=True, slots=True)
class StateSummary:
    """What the next job of a task finds in its checkpoint folder. `files` is MOST_LISTED if there are as many or more.

    `steps`: the optimizer steps of the checkpoints that `ddp` or `pipeline` has written, in order; () for other programs.
    """

    uri: str
    files: int
    size: int  # bytes
    steps: tuple[int, ...]


def summary(store: ObjectStore, address: TaskAddress) -> StateSummary:
    """The state as its object names tell: no object is read. Raises ApiError."""
    found = list(islice(objects(store, address), MOST_LISTED))
    names = (CHECKPOINT.search(each.uri.removeprefix(address.state)) for each in found)
    steps = sorted({int(name[1]) for name in names if name})
    return StateSummary(address.state, len(found), sum(each.size for each in found), tuple(steps))


def objects(store: ObjectStore, address: TaskAddress, folder: str = "") -> Iterator[StoredObject]:
    """The state, or what of it lies in one folder. Never that of a task with a longer name."""
    try:
        yield from store.list(f"{address.state}{folder}/" if folder else address.state)
    except NotFound:  # there is no bucket
        return


def folders(store: ObjectStore, address: TaskAddress) -> list[StateFolder]:
    """The folders of the state, in the order of their names."""
    found: dict[str, StateFolder] = {}
    for each in objects(store, address):
        head, slash, _ = each.uri.removeprefix(address.state).partition("/")
        name = head if slash else ""
        one = found.get(name, StateFolder(name, 0, 0, each.modified))
        found[name] = StateFolder(name, one.files + 1, one.size + each.size, max(one.modified, each.modified))
    return [found[name] for name in sorted(found)]


def clean(store: ObjectStore, address: TaskAddress, folder: str = "") -> int:
    """Removes the state, or one folder of it. Returns the number of objects. Call it while no job of the task runs."""
    found = [each.uri for each in objects(store, address, folder)]
    store.delete_all(found)
    return len(found)
