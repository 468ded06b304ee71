"""Reads values of JSON and of AWS's answers by their types: whoever may write a folder or a bucket may have changed what lies there.

Each function returns its value, and raises ValueError for one of another type; `known` gives a default in its place.
`codec.loads` reads the text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
D = TypeVar("D")

SHOWN = 60  # characters of a value in an error


def known(read: Callable[[object], T], value: object, otherwise: D) -> T | D:
    """What `read` makes of the value, or `otherwise` if it is of another type, such as an absent one."""
    try:
        return read(value)
    except ValueError:
        return otherwise


def table(value: object) -> dict[str, object]:
    """An object."""
    if not isinstance(value, dict):
        raise ValueError(f"{shown(value)} is no object")
    return value


def rows(value: object) -> list[object]:
    """A list."""
    if not isinstance(value, list):
        raise ValueError(f"{shown(value)} is no list")
    return value


def row(value: object, length: int) -> list[object]:
    """A list of this length."""
    if not isinstance(value, list) or len(value) != length:
        raise ValueError(f"{shown(value)} is no list of {length}")
    return value


def text(value: object) -> str:
    """A text."""
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is no text")
    return value


def flag(value: object) -> bool:
    """A boolean."""
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is neither true nor false")
    return value


def whole(value: object, least: int = 0) -> int:
    """A whole number, and no true or 1.0."""
    if type(value) is not int or value < least:
        raise ValueError(f"{shown(value)} is no whole number of {least} or more")
    return value


def number(value: object, most: float = math.inf) -> float:
    """A finite number, whose size is `most` at most."""
    if type(value) not in (int, float):
        raise ValueError(f"{shown(value)} is no number")
    assert isinstance(value, int | float)
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found) or abs(found) > most:
        raise ValueError(f"{shown(value)} is no finite number" + (f" up to {most:g}" if most < math.inf else ""))
    return found


def shown(value: object) -> str:
    """A value for an error, shortened."""
    if isinstance(value, int) and abs(value) > 10**SHOWN:
        return f"a number of more than {SHOWN} digits"
    found = repr(value)
    return found if len(found) <= SHOWN else f"{found[:SHOWN]}.."
