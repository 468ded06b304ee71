"""Reads JSON that people edit: a value that is not allowed becomes one UserError with file, key, value and fix."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from algorun_train.common.errors import UserError


class JsonTable:
    """A JSON object of the file. Each method returns the value of a key, checked, or raises a UserError."""

    def __init__(self, path: Path, place: str, value: object) -> None:
        if not isinstance(value, dict):
            raise UserError(
                f"partition file {path}: {place or 'the file'} is a {type(value).__name__}; allowed: an object {{..}}; "
                "fix: undo the last edit, or profile again"
            )
        self._path, self._place = path, place
        self._value: dict[str, object] = value

    def get(self, key: str) -> Any:  # Any: JSON that the caller checks
        """The value as it is; None if the key is missing."""
        return self._value.get(key)

    def wrong(self, key: str, allowed: str, fix: str = "undo the last edit, or profile again") -> UserError:
        """The error for a value that is not allowed."""
        found = repr(self._value[key]) if key in self._value else "missing"
        text = found if len(found) < 60 else found[:60] + ".."
        return UserError(f"partition file {self._path}: {self._place}{key} is {text}; allowed: {allowed}; fix: {fix}")

    def text(self, key: str) -> str:
        """A text that is not empty."""
        value = self.get(key)
        if not isinstance(value, str) or not value:
            raise self.wrong(key, "a text")
        return value

    def flag(self, key: str) -> bool:
        """True or false; false if the key is missing."""
        value = self._value.get(key, False)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def whole(self, key: str, least: int = 0) -> int:
        """A whole number of at least `least`."""
        value = self.get(key)
        if type(value) is not int or value < least:
            raise self.wrong(key, f"a whole number of at least {least}")
        return value

    def seconds(self, key: str) -> float:
        """A finite number of at least 0."""
        value = self.get(key)
        if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
            raise self.wrong(key, "a number of seconds")
        return float(value)

    def names(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        value = self.get(key)
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.wrong(key, "a list of names")
        return tuple(value)

    def shapes(self, key: str) -> tuple[tuple[int, ...], ...]:
        """A list of lists of whole numbers."""
        value = self.get(key)
        rows = value if isinstance(value, list) else [None]
        if not all(isinstance(row, list) and all(type(n) is int and n >= 0 for n in row) for row in rows):
            raise self.wrong(key, "a list of shapes such as [[8, 128]]")
        return tuple(map(tuple, rows))

    def sizes(self, key: str) -> tuple[tuple[str, int], ...]:
        """An object of names with bytes; empty if the key is missing."""
        value = self._value.get(key, {})
        if not isinstance(value, dict) or not all(type(size) is int and size >= 0 for size in value.values()):
            raise self.wrong(key, 'names with bytes such as {"embed.weight": 4096}')
        return tuple(value.items())

    def table(self, key: str) -> JsonTable:
        """An object."""
        return JsonTable(self._path, f"{self._place}{key}.", self.get(key))

    def tables(self, key: str) -> list[JsonTable]:
        """A list of at least one object."""
        value = self.get(key)
        if not isinstance(value, list) or not value:
            raise self.wrong(key, "a list of objects")
        return [JsonTable(self._path, f"{self._place}{key}[{place}].", row) for place, row in enumerate(value)]
