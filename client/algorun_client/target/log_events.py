"""Reads the events of GetLogEvents by the JSON parser alone.

botocore's parser visits every field of every event: 5 us for each line, where `json` takes 0.8 us. At 16,000 lines a
second that is the largest part of what following costs.
"""

from __future__ import annotations

import json
from typing import TypedDict

from algorun.common.codec import loads


class RawAnswer(TypedDict):
    """An answer before botocore parses it."""

    status_code: int
    body: bytes


def take_events(response_dict: RawAnswer, customized_response_dict: dict[str, object], **_: object) -> None:
    """A handler of botocore's `before-parse`: the events go into what botocore adds to its parsed answer.

    What is no answer with events, or not JSON, is left to botocore as it is.
    """
    if response_dict["status_code"] != 200:
        return
    try:
        answer = loads(response_dict["body"])
    except ValueError:
        return
    events = answer.pop("events", None) if isinstance(answer, dict) else None
    if isinstance(events, list):
        customized_response_dict["events"] = events
        response_dict["body"] = json.dumps(answer).encode()
