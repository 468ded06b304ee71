"""Redaction: replaces the job's secrets by `***` before a failure leaves its host. Pure.

A secret is the value of an option, hyperparameter or variable whose name is that of a secret, such as `password`. A
long value is replaced everywhere. A short or common value (`12`, `true`) occurs in harmless text as well, so it is
replaced only after its name on the same line. Tokens, and passwords in URLs, are secrets wherever they come from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from algorun.common.codec import TooDeepError, loads
from algorun.common.fast_dataclasses import replace
from algorun.common.secret_names import HIDDEN, is_secret, secrets_of
from algorun.common.secret_values import hidden
from algorun.control.failures.failure import Failure
from algorun.job.config import JobConfig

SHORT = 4  # characters; a shorter value is replaced only after its name
LONG = 8  # characters; from here on a value is replaced inside words too, and a number everywhere
COMMON = frozenset({"true", "false", "none", "null", "auto"})


def failure(found: Failure, config: JobConfig) -> Failure:
    """The failure without secrets."""
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
    """Another text of the job, such as its closing line, without secrets."""
    return _hide(found, _secrets(config))


def _secrets(config: JobConfig) -> list[tuple[str, str]]:
    """Name and value of each secret, the longest value first."""
    words = (*config.entry.args, *config.request.args)
    named = [
        *_of_mapping(config.environ),
        *_of_mapping(config.hyperparameters.decoded),
        *((name, value) for _, name, value in secrets_of(words)),
        *(pair for word in words for pair in _of_value("", "", word)),
    ]
    found = {(name, form) for name, value in named for form in _forms(value)}
    return sorted(found, key=lambda pair: (-len(pair[1]), pair))


def _of_mapping(values: Mapping[str, object], name: str = "") -> Iterator[tuple[str, str]]:
    """Name and value of the secrets in a mapping and in the lists and objects inside it. Everything below a secret name
    is secret."""
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
    elif isinstance(value, str) and value[:1] in ("[", "{"):
        yield from _of_value("", key, _inside(value))


def _inside(text: str) -> object:
    """The list or object that a text holds, as JSON or Python writes it: SDKs send both. None where it holds none."""
    try:
        return loads(text)
    except TooDeepError:
        return None
    except ValueError:
        import ast  # 6 ms, which only such a text needs
        import warnings
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of `'\d'`: Python 3.12 prints them
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _forms(value: str) -> set[str]:
    """The value in all its spellings: as it is, and as JSON, Python and a URL write it; each line of a long key too."""
    from urllib.parse import quote  # 3 ms, which a job without secrets does not need

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
    return hidden(text)


def _words(value: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(value)}(?!\w)")


def _behind(name: str, value: str, line: str) -> str:
    """The line with the value replaced after the name (spelled with `-` or `_`)."""
    found = re.search(re.escape(name).replace("\\-", "_").replace("_", "[-_]"), line, re.IGNORECASE)
    return line[: found.end()] + _words(value).sub(HIDDEN, line[found.end() :]) if found else line


def _number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
