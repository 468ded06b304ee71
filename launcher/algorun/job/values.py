"""Values with their source, and numbers parsed from text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass

T = TypeVar("T")

MOST_SECONDS = 1e9  # 30 years
HOST_NAME_LENGTH = 253  # octets, RFC 1035


@dataclass(frozen=True, slots=True)
class Sourced(Generic[T]):
    """A value and its source: the file, option or rule that decided it."""

    value: T
    source: str


def seconds(where: str, raw: str) -> float:
    """A positive, finite number of seconds. Raises UserError."""
    value = positive(raw, MOST_SECONDS)
    if value is None:
        raise UserError(where, f"{raw!r} is not a positive number of seconds", allowed="a number above 0")
    return value


def positive(raw: str, limit: float) -> float | None:
    """A number above 0 and below `limit`; None if the text is none."""
    try:
        value = float(raw)
    except ValueError:
        return None
    return value if 0 < value < limit else None


def names(where: str, value: object, such_as: str = '["train"]') -> tuple[str, ...]:
    """A list of names, which may be empty. `value` is decoded JSON, `such_as` an example. Raises UserError."""
    if not value:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise UserError(where, f"{value!r} is not a list of names", allowed=f"a list such as {such_as}")
    return tuple(value)


def count(where: str, raw: object, most: int = 4096, least: int = 1) -> int:
    """A whole number from `least` to `most`. Raises UserError."""
    try:
        value = int(str(raw).strip())
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise UserError(where, f"{raw!r} is not a whole number from {least} to {most}", allowed=f"{least} to {most}")
    return value


def _is_address(text: str) -> bool:
    """True if the text can be an IP address or a host name."""
    return text.isascii() and 0 < len(text) <= HOST_NAME_LENGTH and all(c.isalnum() or c in "-._:%" for c in text)


def addresses(name: str, text: str) -> Mapping[str, str]:
    """Host names and their addresses, from HOST=ADDRESS,HOST=ADDRESS. Raises UserError."""
    pairs = [item.partition("=") for item in text.split(",") if item]
    if any(not host or not _is_address(address) for host, _, address in pairs):
        raise UserError(
            name, f"{text!r} is not a list of HOST=ADDRESS", allowed="such as algo-1=10.0.0.1,algo-2=10.0.0.2"
        )
    return {host: address for host, _, address in pairs}
