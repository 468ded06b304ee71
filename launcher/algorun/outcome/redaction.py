"""A failure without the job's secrets: `***` in place of their values, before it leaves its host. Pure.

A secret is the value of an option, a hyperparameter or a variable whose name says so. Long ones are hidden wherever
they stand. Short and common ones (`12`, `true`) would take half of the text along: these are hidden behind their name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from urllib.parse import quote

from algorun.control.failure import Failure
from algorun.job.config import JobConfig
from algorun.plan.render import is_secret

HIDDEN = "***"
SHORT = 4  # characters: fewer are hidden behind their name only
LONG = 8  # characters from which a secret is hidden within a word too, and a number wherever it stands
COMMON = frozenset({"true", "false", "none", "null", "auto"})


def failure(found: Failure, config: JobConfig) -> Failure:
    """The failure as it may leave this host."""
    secrets = _secrets(config)

    def clean(text: str) -> str:
        return _hide(text, secrets)

    return replace(
        found,
        message=clean(found.message),
        traceback=clean(found.traceback),
        hint=clean(found.hint),
        user_text=clean(found.user_text),
    )


def text(found: str, config: JobConfig) -> str:
    """Any other text of the job, such as its closing line."""
    return _hide(found, _secrets(config))


def _secrets(config: JobConfig) -> list[tuple[str, str]]:
    """Name and value of each, the longest value first."""
    named = [
        *_of_mapping(config.environ),
        *_of_mapping(config.hyperparameters.decoded),
        *_of_words((*config.entry.args, *config.request.args)),
    ]
    found = {(name, form) for name, value in named for form in _forms(value)}
    return sorted(found, key=lambda pair: (-len(pair[1]), pair))


def _of_mapping(values: Mapping[str, object], name: str = "") -> Iterator[tuple[str, str]]:
    """The leaves below a name that says so; lists and objects may hold more of them."""
    for key, value in values.items():
        yield from _of_value(name or (key if is_secret(str(key)) else ""), str(key), value)


def _of_value(name: str, key: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        yield from _of_mapping(value, name)
    elif isinstance(value, list):
        for item in value:
            yield from _of_value(name, key, item)
    elif name and value is not None:
        yield key, str(value)


def _of_words(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """`--password x` and `--password=x` of a command line."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not name.startswith("-") or not is_secret(name):
            continue
        if equals:
            yield name.lstrip("-"), value
        elif index + 1 < len(words) and not words[index + 1].startswith("--"):
            yield name.lstrip("-"), words[index + 1]


def _forms(value: str) -> set[str]:
    """As it is, and as JSON, Python and an address write it; a key of many lines also line by line."""
    lines = [line for line in value.splitlines() if len(line) >= LONG]
    return {value, json.dumps(value)[1:-1], repr(value)[1:-1], quote(value, safe=""), *lines} - {""}


def _hide(text: str, secrets: Sequence[tuple[str, str]]) -> str:
    for name, value in secrets:
        if value not in text:
            continue
        if len(value) < SHORT or value.lower() in COMMON or (len(value) < LONG and _number(value)):
            text = "\n".join(_behind(name, value, line) for line in text.split("\n"))
        elif len(value) < LONG:
            text = _words(value).sub(HIDDEN, text)
        else:
            text = text.replace(value, HIDDEN)
    return text


def _words(value: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(value)}(?!\w)")


def _behind(name: str, value: str, line: str) -> str:
    """The line with the value hidden wherever it stands behind the name, in either spelling of it."""
    found = re.search(re.escape(name).replace("\\-", "_").replace("_", "[-_]"), line, re.IGNORECASE)
    return line[: found.end()] + _words(value).sub(HIDDEN, line[found.end() :]) if found else line


def _number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
