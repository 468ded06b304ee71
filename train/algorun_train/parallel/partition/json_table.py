"""Reads JSON that people edit: each value is asked for with what is allowed, and refused in one sentence."""

import math
from pathlib import Path
from typing import Any

from algorun_train.errors import UserError


class JsonTable:
    """A JSON object of the file, whose values are asked for with what is allowed."""

    def __init__(self, path: Path, place: str, value: Any) -> None:
        self._path, self._place, self._value = path, place, value
        if not isinstance(value, dict):
            raise UserError(
                f"partition file {path}: {place or 'the file'} is a {type(value).__name__}; allowed: an object {{..}}; "
                "fix: undo the last edit, or profile again"
            )

    def get(self, key: str) -> Any:
        return self._value.get(key)

    def wrong(self, key: str, allowed: str, fix: str = "undo the last edit, or profile again") -> UserError:
        found = repr(self._value[key]) if key in self._value else "missing"
        text = found if len(found) < 60 else found[:60] + ".."
        return UserError(f"partition file {self._path}: {self._place}{key} is {text}; allowed: {allowed}; fix: {fix}")

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str) or not value:
            raise self.wrong(key, "a text")
        return value

    def flag(self, key: str) -> bool:
        """False where it is missing."""
        value = self._value.get(key, False)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def whole(self, key: str, least: int = 0) -> int:
        value = self.get(key)
        if type(value) is not int or value < least:
            raise self.wrong(key, f"a whole number of at least {least}")
        return value

    def seconds(self, key: str) -> float:
        value = self.get(key)
        if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
            raise self.wrong(key, "a number of seconds")
        return float(value)

    def names(self, key: str) -> tuple[str, ...]:
        value = self.get(key)
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.wrong(key, "a list of names")
        return tuple(value)

    def shapes(self, key: str) -> tuple[tuple[int, ...], ...]:
        value = self.get(key)
        rows = value if isinstance(value, list) else [None]
        if not all(isinstance(row, list) and all(type(n) is int and n >= 0 for n in row) for row in rows):
            raise self.wrong(key, "a list of shapes such as [[8, 128]]")
        return tuple(map(tuple, rows))

    def sizes(self, key: str) -> tuple[tuple[str, int], ...]:
        """Names with whole numbers; none where it is missing."""
        value = self._value.get(key, {})
        if not isinstance(value, dict) or not all(type(size) is int and size >= 0 for size in value.values()):
            raise self.wrong(key, 'names with bytes such as {"embed.weight": 4096}')
        return tuple(value.items())

    def table(self, key: str) -> "JsonTable":
        return JsonTable(self._path, f"{self._place}{key}.", self.get(key))

    def tables(self, key: str) -> list["JsonTable"]:
        value = self.get(key)
        if not isinstance(value, list) or not value:
            raise self.wrong(key, "a list of objects")
        return [JsonTable(self._path, f"{self._place}{key}[{place}].", row) for place, row in enumerate(value)]
