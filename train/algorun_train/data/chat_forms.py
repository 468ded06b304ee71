"""The forms of a chat that chat templates expect: they differ in tool calls, and in messages without content."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from algorun_train.common.json_text import loads

Message = dict[str, Any]  # Any: the user's JSON, which the template reads


def forms(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """The chat with the arguments of its tool calls as objects, which transformers documents, then as JSON, which OpenAI exports;
    each with its messages without content as they are, then with an empty one. Most chats have one form only. Raises ValueError
    for arguments that are a string and no JSON."""
    seen: list[list[Message]] = []
    for change in (_object, _json):
        given = [_changed(message, change) for message in messages]
        for form in (given, [message | {"content": message.get("content") or ""} for message in given]):
            if form not in seen:
                seen.append(form)
                yield form


def calls(chat: Sequence[Message]) -> list[Message]:
    """The functions that the messages call, each with its name and arguments."""
    found = [call for message in chat for call in _list(message.get("tool_calls"))]
    return [_function(call) for call in found]


def arguments(chat: Sequence[Message]) -> list[object]:
    """The arguments of all calls."""
    return [call["arguments"] for call in calls(chat) if "arguments" in call]


def _list(value: object) -> list[Message]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _function(call: Message) -> Message:
    inner = call.get("function")
    return inner if isinstance(inner, dict) else call


def _changed(message: Message, change: Callable[[object], object]) -> Message:
    """The message with the arguments of its calls changed."""
    if not any("arguments" in _function(call) for call in _list(message.get("tool_calls"))):
        return message
    changed = []
    for call in _list(message["tool_calls"]):
        function = _function(call)
        new = function | {"arguments": change(function["arguments"])} if "arguments" in function else function
        changed.append(new if function is call else call | {"function": new})
    return message | {"tool_calls": changed}


def _object(given: object) -> object:
    if not isinstance(given, str):
        return given
    try:
        return loads(given) if given.strip() else {}
    except ValueError:
        shown = given if len(given) <= 60 else f"{given[:60]}.."
        raise ValueError(f"a tool call has the arguments {shown!r}, which are no JSON") from None


def _json(given: object) -> object:
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
