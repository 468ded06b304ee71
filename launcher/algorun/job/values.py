"""Values that know where they came from, and numbers read from text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from algorun.errors import UserError

T = TypeVar("T")

MOST_SECONDS = 1e9  # 30 years
HOST_NAME_LENGTH = 253  # octets, RFC 1035


@dataclass(frozen=True, slots=True)
class Sourced(Generic[T]):
    """A decided value and the file, option or rule that decided it."""

    value: T
    source: str


def seconds(where: str, raw: str) -> float:
    """A positive, finite number of seconds. Raises UserError."""
    try:
        value = float(raw)
    except ValueError:
        value = -1.0
    if not 0 < value < MOST_SECONDS:
        raise UserError(where, f"{raw!r} is not a positive number of seconds", allowed="a number above 0")
    return value


def count(where: str, raw: object, most: int = 4096, least: int = 1) -> int:
    """A whole number from `least` to `most`. Raises UserError."""
    try:
        value = int(str(raw).strip())
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise UserError(where, f"{raw!r} is not a whole number from {least} to {most}", allowed=f"{least} to {most}")
    return value
