"""A row of a .jsonl or .parquet file as a `Document`: which keys are read, and what they may hold."""

import json
import re
from typing import Any

from algorun_train.common.json_text import loads

from .document import BadDocument, Document

VARIABLES = "chat_template_kwargs"  # TRL's name: variables of the chat template, such as enable_thinking
KEYS = ("text", "messages", "tools", VARIABLES)  # what is read of a row; others, such as an id, are not
MESSAGES = "a list of objects with role and content, at least one of role assistant"
TOOLS = "a list of objects, the JSON schemas of the tools"
FORMS = {"messages": MESSAGES, "tools": TOOLS, VARIABLES: "an object"}
HALF = re.compile(r"\\u[dD][89a-fA-F]")  # in JSON: a surrogate, alone or in a pair
SHOWN = 60  # characters of a value that an error quotes


class UnfitError(Exception):
    """What is wrong with a row, as the end of an error that begins with file and line, or row."""


def document(row: dict[str, Any], where: str, json_text: str = "") -> Document | BadDocument | None:
    """The document of a row; None if its text is empty. `messages` count before `text`, also as a string of JSON, as exports write
    lists that a column cannot hold. `where` is the file, with line or row; `json_text` is what the row was read from, if it was."""
    try:
        messages, text = _unpacked(row, "messages"), row.get("text")
        if messages or (messages is not None and text is None):
            chat, tools = _chat(messages), _tools(_unpacked(row, "tools") or [])
            variables = _variables(_unpacked(row, VARIABLES) or {})
            _check_halves([chat, tools, variables], json_text)
            return Document(where, messages=tuple(chat), tools=tuple(tools), variables=variables)
        if "text" not in row:
            raise UnfitError(
                f"has neither text nor messages, only {', '.join(map(repr, row)) or 'nothing'}; "
                f"allowed: text, a string, or messages, {MESSAGES}; fix: name the keys so"
            )
        if not isinstance(text, str):
            raise UnfitError(f"has text {_shown(text)}; allowed: a string; fix: repair it")
        _check_halves(text, json_text)
        return Document(where, text) if text else None
    except UnfitError as fault:
        return BadDocument(f"{where} {fault}")


def _unpacked(row: dict[str, Any], key: str) -> object:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        return value
    try:
        return parsed(value)
    except ValueError:
        raise UnfitError(
            f"has {key} {_shown(value)}; allowed: {FORMS[key]}, also as JSON in a string; fix: repair it"
        ) from None


def parsed(json_text: str) -> object:
    """The value of JSON in a row's string. Raises ValueError if it is none, UnfitError for half of a surrogate
    pair in it."""
    value = load_json(json_text)
    _check_halves(value, json_text)
    return value


def load_json(text: str) -> object:
    """The value of a JSON text. Raises ValueError if it is none, or is nested too deep."""
    return loads(text, _object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises ValueError if a key occurs twice: readers disagree on which value counts."""
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice in an object")
    return row


def _chat(messages: object) -> list[dict[str, Any]]:
    """The messages with their content as text. Raises UnfitError."""
    if not isinstance(messages, list) or not messages:
        raise UnfitError(f"has messages {_shown(messages)}; allowed: {MESSAGES}; fix: repair them")
    chat = [_message(message, f"message {number}") for number, message in enumerate(messages, start=1)]
    if not any(message["role"] == "assistant" for message in chat):
        roles = ", ".join(map(repr, sorted({message["role"] for message in chat})))
        raise UnfitError(
            f"has no message of role assistant, only of {roles}; allowed: {MESSAGES}; fix: repair or remove the chat"
        )
    return chat


def _message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise UnfitError(f"has {where} {_shown(message)}; allowed: an object with role and content; fix: repair it")
    if not isinstance(message.get("role"), str):
        if "role" in message:
            raise UnfitError(f"has {where} with role {_shown(message['role'])}; allowed: a string; fix: repair it")
        raise UnfitError(
            f"has {where} without role, only {', '.join(map(repr, message)) or 'nothing'}; allowed: an object with role and "
            "content; fix: name its keys so, or repair it"
        )
    weight = message.get("weight")
    if weight not in (None, 1):  # as OpenAI and Mistral name an answer that is not to be learned
        raise UnfitError(
            f"has {where} with weight {_shown(weight)}; allowed: 1, because each answer is learned; "
            "fix: end the chat in front of it, or remove the chat"
        )
    content = message.get("content")
    if isinstance(content, list):
        # Most templates write a list as Python does, with its brackets. Those that know parts write their texts one after the other.
        return message | {"content": "".join(_part(part, where) for part in content)}
    if content is not None and not isinstance(content, str):
        raise UnfitError(
            f"has {where} with content {_shown(content)}; allowed: a string, parts of type text, or null; fix: repair it"
        )
    return message


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise UnfitError(
        f"has {where} with the part {_shown(part)}; allowed: parts of type text; fix: remove it, or the chat"
    )


def _tools(tools: object) -> list[dict[str, Any]]:
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UnfitError(f"has tools {_shown(tools)}; allowed: {TOOLS}; fix: repair or remove them")
    return tools


def _variables(variables: object) -> dict[str, Any]:
    """The variables that are set: in a column of structs a row has all names, and null for what it does not set."""
    if not isinstance(variables, dict):
        raise UnfitError(f"has {VARIABLES} {_shown(variables)}; allowed: {FORMS[VARIABLES]}; fix: repair or remove it")
    return {name: value for name, value in variables.items() if value is not None}


def _check_halves(value: object, json_text: str) -> None:
    """Raises UnfitError if a string or key of `value`, read from `json_text`, holds half of a surrogate pair: JSON can write it,
    UTF-8 cannot."""
    if "\\" not in json_text:
        return
    try:
        if isinstance(value, str):
            value.encode()  # takes less time than to search the JSON
        elif HALF.search(json_text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        before = error.object[max(error.start - 20, 0) : error.start].lstrip('["')
        raise UnfitError(
            f"has \\u{ord(error.object[error.start]):04x} behind {_shown(before)}, half of a surrogate pair, as a cut emoji "
            "leaves it; allowed: text that UTF-8 can hold; fix: remove it"
        ) from None
    except RecursionError:
        raise UnfitError("is nested too deep; allowed: text or a chat; fix: remove it") from None


def _shown(value: object) -> str:
    """A value for an error, on one line."""
    try:
        text = json.dumps(value, default=str)
    except (ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}.."
