"""`jobs/NNNN/begin.json`: which series a job belongs to, and the state of the task that it found.

It is written before the job is created, so that a client that comes later, on any machine, knows what each job has done:
nothing of a series is kept on the machine that began it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from algorun.common.codec import loads
from algorun.common.errors import UserError
from algorun.common.json_values import table, text, whole
from algorun_client.aws.api import ObjectStore
from algorun_client.common.errors import NotFound
from algorun_client.request.model import TaskAddress
from algorun_client.submit.place import state_folder
from algorun_client.submit.place.state_folder import CHECKPOINT

FORMAT = 1


@dataclass(frozen=True, slots=True)
class StateFound:
    """The state as its object names, sizes and ETags tell.

    `step`: the newest optimizer step of `ddp` or `pipeline`; None for other programs, and before the first checkpoint.
    """

    sha256: str
    files: int
    step: int | None = None

    def is_progress_since(self, before: StateFound) -> bool:
        """True if the program has come further. Of algorun's own checkpoints the step counts, else any change."""
        if before.step is not None:
            return self.step is not None and self.step > before.step
        return self.sha256 != before.sha256

    @property
    def text(self) -> str:
        """In words."""
        if self.step is not None:
            return f"a checkpoint of step {self.step}"
        return f"{self.files} file{'s'[: self.files != 1]} of state" if self.files else "no state"


EMPTY = StateFound(hashlib.sha256().hexdigest(), 0)


@dataclass(frozen=True, slots=True)
class JobBegin:
    """What is known of a job since before it was created. `choice`: which of several kinds of hosts it got."""

    series: str
    choice: int
    state: StateFound
    is_first: bool = False  # the task began anew: earlier jobs do not count


def state_now(store: ObjectStore, address: TaskAddress) -> StateFound:
    """Lists the state; reads no object. Raises ApiError."""
    digest, files, step = hashlib.sha256(), 0, None
    for each in state_folder.objects(store, address):
        files += 1
        digest.update(json.dumps([each.uri, each.size, each.etag]).encode())
        if found := CHECKPOINT.search(each.uri.removeprefix(address.state)):
            step = max(step or 0, int(found[1]))
    return StateFound(digest.hexdigest(), files, step)


def write(store: ObjectStore, address: TaskAddress, number: int, begin: JobBegin) -> None:
    """Keeps what a job finds. Before the job is created."""
    found = begin.state
    value = {
        "format": FORMAT, "series": begin.series, "choice": begin.choice, "first": begin.is_first,
        "state": {"sha256": found.sha256, "files": found.files, "step": found.step},
    }  # fmt: skip
    store.put(address.begin(number), json.dumps(value, indent=1).encode())


def read_begin(store: ObjectStore, address: TaskAddress, number: int) -> JobBegin | None:
    """What `write` kept; None for a job that was not made for a series. Raises UserError for a damaged object."""
    uri = address.begin(number)
    try:
        content = store.get(uri)
    except NotFound:
        return None
    try:
        value = table(loads(content))
        if value["format"] != FORMAT:
            return None
        state = table(value["state"])
        step = None if state["step"] is None else whole(state["step"])
        found = StateFound(text(state["sha256"]), whole(state["files"]), step)
        return JobBegin(text(value["series"]), whole(value["choice"]), found, value["first"] is True)
    except (ValueError, KeyError) as error:
        raise UserError(
            uri,
            f"is damaged ({type(error).__name__}: {error})",
            fix="remove this object; earlier jobs then do not count",
        ) from None
