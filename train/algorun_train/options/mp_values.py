"""Values of AWS's `mp_parameters`, each checked: it may be a JSON value or a text, as the SageMaker SDK writes some."""

import contextlib
import json
import math
from collections.abc import Mapping

from algorun_train.common.errors import UserError

Given = Mapping[str, object]  # what the job wrote: JSON values by parameter name, not checked yet

LONGEST = 200  # characters of a value in a message
BOOLEANS = {"true": True, "false": False}


def value_or(value: int | float | None, default: int | float) -> int | float:
    """`value`, or the default if it is None."""
    return default if value is None else value


def refused(key: str, value: object, allowed: str, fix: str) -> UserError:
    """The error about one parameter."""
    return UserError(f"mp_parameters: {key} = {json.dumps(value)[:LONGEST]}; allowed: {allowed}; fix: {fix}")


def count(given: Given, key: str, at_least: int = 1) -> int | None:
    """A whole number; None if it is not given."""
    value = given.get(key)
    if value is None:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)  # the SageMaker SDK writes some numbers as text
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise refused(key, value, f"a whole number of at least {at_least}", "give one")
    return value


def flag(given: Given, key: str, default: bool) -> bool:
    """True or false."""
    value = given.get(key, default)
    if isinstance(value, str) and value.lower() in BOOLEANS:
        return BOOLEANS[value.lower()]
    if not isinstance(value, bool):
        raise refused(key, value, "true or false", "give one of them")
    return value


def number(
    given: Given, key: str, most: float = math.inf, allowed: str = "a number of at least 0"
) -> int | float | None:
    """A number from 0 to `most`, which may be written as text; None if it is not given."""
    value = given.get(key)
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most or value == math.inf:
        raise refused(key, given[key], allowed, "give one")
    return value


def choice(given: Given, key: str, allowed: tuple[str, ...]) -> str | None:
    """One of `allowed`; None if it is not given."""
    value = given.get(key)
    if value is not None and (not isinstance(value, str) or value not in allowed):
        raise refused(key, value, ", ".join(allowed), "choose one of them")
    return value
