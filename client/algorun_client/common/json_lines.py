"""What --json prints: one object a line, and at the end one with event `end`. docs/submit.md has the table of events."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from algorun.common.plain_text import uncommanding_json

from .codes import ClientCode, Source

DONE = "done"  # how a command ends that says nothing about a job's end


@dataclass(frozen=True, slots=True, kw_only=True)
class LastObject:
    """The last object of every command."""

    job: str = ""
    code: int = int(ClientCode.OK)
    code_known: bool = True
    kind: str = DONE
    source: str = Source.CLIENT.value
    text: str = ""
    again: str = ""  # the line that comes back to a job that runs on

    def to_json(self) -> dict[str, object]:
        """The object."""
        return {"event": "end", **asdict(self)}


def text(value: object) -> str:
    """A value as one line of JSON."""
    return uncommanding_json(json.dumps(value))


def write(event: str, **fields: object) -> None:
    """Prints an object on stdout."""
    print(text({"event": event, **fields}), flush=True)


def write_end(end: LastObject) -> None:
    """Prints the last object on stdout."""
    print(text(end.to_json()), flush=True)
