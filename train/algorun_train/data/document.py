"""`Document`: what one file of a text channel holds, in the form that the tokenizer takes."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Document:
    """A text, or a chat: `messages`, and the JSON schemas of the `tools` and the `variables` that the chat template is given with
    them. A long text comes in pieces; `begins` and `ends` tell the first and the last one. `where` names it in errors."""

    where: str
    text: str = ""
    messages: tuple[dict[str, Any], ...] = ()  # Any: a message is the user's JSON, and the chat template reads it
    tools: tuple[dict[str, Any], ...] = ()
    variables: dict[str, Any] = field(default_factory=dict)
    begins: bool = True
    ends: bool = True


@dataclass(frozen=True, slots=True)
class BadDocument:
    """What stands where `documents` documents cannot be used: `error` is the text of a UserError. `retracts`: all that came of
    this file before belongs to it."""

    error: str
    retracts: bool = False
    documents: int = 1
