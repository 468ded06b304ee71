"""Reads the small JSON files of a job's folder. They may be damaged, and come from anybody."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from algorun.common import json_values
from algorun.common.codec import loads
from algorun.common.errors import UserError

T = TypeVar("T")

LARGEST = 4 * 1024 * 1024  # bytes; a request with 40 metrics has 30,000
LARGEST_NUMBER = 1e15  # times, seconds and counts are far below; a float of this size still tells seconds apart


class Fields:
    """The values of a JSON object by key, checked for their types. A missing key or null is None or empty."""

    def __init__(self, path: Path, values: Mapping[str, object], fix: str, within: str = "") -> None:
        self._path, self._values, self._fix, self._within = path, values, fix, within

    def text(self, key: str) -> str:
        """A string, "" without one. Raises UserError."""
        return self._read(key, json_values.text, "a string") or ""

    def number(self, key: str) -> float | None:
        """A number of at most LARGEST_NUMBER, also below 0. Raises UserError."""
        return self._read(key, moderate, "a number")

    def table(self, key: str) -> Fields:
        """An object. Raises UserError."""
        return self._below(self._read(key, json_values.table, "an object") or {}, key)

    def flag(self, key: str) -> bool | None:
        """A boolean. Raises UserError."""
        return self._read(key, json_values.flag, "true or false")

    def numbers(self, key: str) -> list[float]:
        """A list of numbers of at most LARGEST_NUMBER, also below 0. Raises UserError."""
        return self._list(key, moderate, "numbers")

    def texts(self, key: str) -> list[str]:
        """A list of strings. Raises UserError."""
        return self._list(key, json_values.text, "strings")

    def tables(self, key: str) -> list[Fields]:
        """A list of objects. Raises UserError."""
        found = self._list(key, json_values.table, "objects")
        return [self._below(each, f"{key}[{n}]") for n, each in enumerate(found)]

    def wrong(self, problem: str) -> UserError:
        """The error of values that contradict each other."""
        return UserError(str(self._path), f"{self._within}{problem}: the file is damaged", fix=self._fix)

    def plain(self) -> list[tuple[str, str]]:
        """All strings and numbers, as text, in the order of the file."""
        return [
            (key, f"{value:.6g}" if isinstance(value, float) else str(value))
            for key, value in self._values.items()
            if isinstance(value, (int, float, str))
        ]

    def _read(self, key: str, read: Callable[[object], T], wanted: str) -> T | None:
        value = self._values.get(key)
        try:
            return None if value is None else read(value)
        except ValueError:
            raise self.wrong(f"{key} is not {wanted}") from None

    def _list(self, key: str, read: Callable[[object], T], wanted: str) -> list[T]:
        return self._read(key, lambda found: list(map(read, json_values.rows(found))), f"a list of {wanted}") or []

    def _below(self, values: Mapping[str, object], place: str) -> Fields:
        return Fields(self._path, values, self._fix, f"{self._within}{place}.")


def moderate(value: object) -> float:
    """A number of at most LARGEST_NUMBER, also below 0. Raises ValueError."""
    return json_values.number(value, LARGEST_NUMBER)


def read_object(path: Path, fix: str, largest: int = LARGEST) -> Fields | None:
    """The JSON object in a file of at most `largest` bytes, None without the file. `fix`: how to get a good one.

    Raises UserError.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(largest + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(str(path), error.strerror or str(error), fix="check the path and its rights") from None
    if len(data) > largest:
        raise UserError(str(path), f"is larger than {largest >> 20} MiB: the file is damaged", fix=fix)
    try:
        value = loads(data)
    except ValueError as error:  # not JSON, or not UTF-8
        raise UserError(str(path), f"is not JSON: {error}", fix=fix) from None
    if not isinstance(value, dict):
        raise UserError(str(path), f"holds {type(value).__name__}, not an object: the file is damaged", fix=fix)
    return Fields(path, value, fix)
