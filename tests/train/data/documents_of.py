"""What the readers of text make of a file, for comparison with what a test expects."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from algorun_train.data.document import BadDocument
from algorun_train.data.token_files import documents

USER = {"role": "user", "content": "fox?"}
ANSWER = {"role": "assistant", "content": "dog"}


@dataclass(frozen=True)
class Bad:
    """Expects a BadDocument: its error, behind the file's path, begins with `error`, a pattern, and is one line with the fix."""

    error: str
    documents: int = 1


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def check(path: Path, expected: Sequence[object]) -> None:
    """`expected`: a string for a text, a list of messages for a chat, or Bad."""
    found = list(documents(path))
    assert len(found) == len(expected), [str(each)[:300] for each in found[:9]]
    for each, other in zip(found, expected, strict=True):
        if isinstance(other, Bad):
            assert isinstance(each, BadDocument), each
            assert each.error.startswith(str(path))
            assert re.match(other.error, each.error.removeprefix(str(path)).lstrip(", ")), each.error
            assert "; allowed: " in each.error
            assert "; fix: " in each.error
            assert "\n" not in each.error
            assert each.documents == other.documents
        else:
            assert not isinstance(each, BadDocument), each
            assert (list(each.messages) if each.messages else each.text) == other
            json.dumps([each.text, each.messages, each.tools], ensure_ascii=False).encode()  # UTF-8 can hold it
