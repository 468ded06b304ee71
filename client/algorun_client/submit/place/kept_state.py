"""What `submit` says about the state that a task's new job will find: in one line, which, and how to begin anew."""

from __future__ import annotations

import sys

from algorun.common.sizes import size_text
from algorun_client.aws.api import ObjectStore
from algorun_client.common import json_lines
from algorun_client.common.errors import ApiError
from algorun_client.common.refusals import Refusal, refusal
from algorun_client.request.model import Kind, Request

from . import state_folder
from .state_folder import MOST_LISTED, StateSummary
from .telling import Telling

ANEW = "--clean-state begins anew"


def say(store: ObjectStore, request: Request, telling: Telling) -> None:
    """Says once which state goes along with a request's job; nothing if there is none. Raises ApiError."""
    if request.kind is not Kind.TRAINING:  # SageMaker restores no folder of a processing job
        return
    address = request.address
    try:
        found = state_folder.summary(store, address)
    except ApiError as error:
        if refusal(error) is not Refusal.DENIED:
            raise
        text = f"the state in {address.state} goes along, if there is any; it cannot be listed: {error}; {ANEW}"
        if telling.first(text) and not telling.as_json:
            print(f"algorun: {text}", file=sys.stderr, flush=True)
        return
    if not found.files or not telling.first(f"state of {address.uri}: {found}"):
        return
    if telling.as_json:
        newest = found.steps[-1] if found.steps else None
        json_lines.write(
            "kept_state", uri=found.uri, files=found.files, bytes=found.size, checkpoints=len(found.steps), step=newest
        )
    else:
        print(f"algorun: {text_of(found)}", file=sys.stderr, flush=True)


def text_of(found: StateSummary) -> str:
    """The line: where the state is, how much, the newest checkpoint, and the fix."""
    more = " or more" if found.files == MOST_LISTED else ""
    parts = [f"{found.files} file{'s'[: found.files != 1]}{more}, {size_text(found.size)}"]
    if found.steps:
        count = len(found.steps)
        parts.append(f"{count} checkpoint{'s'[: count != 1]}, the newest of step {found.steps[-1]}")
    return f"the state of earlier jobs goes along: {found.uri} ({'; '.join(parts)}); {ANEW}"
