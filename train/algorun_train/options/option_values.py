"""Converts the text of an option into its value, or refuses it by name."""

import contextlib
import math
import re
from pathlib import Path
from typing import Any

from algorun_train.common.errors import UserError

from .option_rules import Option

TRUE, FALSE = {"true", "1", "yes", "on"}, {"false", "0", "no", "off"}
NOT_SET = ("", "None", "null")
EXACT = 2**53  # from here on a float does not hold every whole number
LONGEST = 200  # characters of a value in a message
UNEXPANDED = re.compile(r"~|.*\$(\w|\{)", re.DOTALL)  # what a shell would have replaced in a path


def short(text: str) -> str:
    """A value in a message."""
    return repr(text) if len(text) <= LONGEST else f"{text[:LONGEST]!r}.."


def convert(known: Option, text: str, source: str) -> object:
    """The value of `text`; None if it is not set, which means the default."""
    rule = known.rule
    if text in NOT_SET and not (text and "none" in rule.choices):  # there None may mean the choice `none`
        return None
    if known.kind is Path and UNEXPANDED.match(text):
        raise UserError(
            f"option {known.flag}: {short(text)} from {source}: no shell replaces ~ and variables there; allowed: a path as "
            "it is; fix: write it out"
        )
    try:
        value: Any = ",".join(_words(text)) if rule.many else _parse(known.kind, text)  # Any: of the option's type
        outside = (
            (rule.above is not None and not value > rule.above)
            or (rule.at_least is not None and not value >= rule.at_least)
            or (known.most is not None and not value <= known.most)
            or (rule.choices and value not in rule.choices)
        )
    except ValueError:
        outside = True
    if outside:
        fix = f"give one of them, for example {known.flag} {_example(known)}"
        raise UserError(
            f"option {known.flag}: {short(text)} from {source} is not allowed; allowed: {known.allowed()}; fix: {fix}"
        )
    return value


def _parse(kind: type, text: str) -> Any:  # Any: an object of the type `kind`
    if kind is bool:
        if text.lower() in TRUE | FALSE:
            return text.lower() in TRUE
        raise ValueError
    if kind is int:
        with contextlib.suppress(ValueError):
            return int(text)
        number = float(text)  # a tuning job writes whole numbers as 32.0
        if not abs(number) < EXACT or number != int(number):
            raise ValueError
        return int(number)
    if kind is float:
        number = float(text)
        if not math.isfinite(number):
            raise ValueError
        return number
    return kind(text)


def _words(text: str) -> list[str]:
    """Words separated by commas, as they are or as a list of JSON or Python. Raises ValueError."""
    if not text.startswith("["):
        return text.split(",")
    import ast  # imported late: most jobs do not use it

    try:
        found = ast.literal_eval(text)
    except (SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueError from None
    if not all(isinstance(word, str) and word for word in found):
        raise ValueError
    return list(found)


def _example(known: Option) -> str:
    if known.default is not None:
        return str(known.default)
    if known.rule.choices:
        return known.rule.choices[0]
    return str(max(known.rule.at_least or 0, 1)) if known.kind in (int, float) else "VALUE"
