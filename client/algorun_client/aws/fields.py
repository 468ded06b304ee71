"""Reads fields of AWS's answers, which are tables as deep as SageMaker's reference shows them. Pure.

A field that is absent or null is empty: "", {}, () or None. AWS leaves out what it does not know yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

from algorun.common import json_values
from algorun.common.json_values import known
from algorun_client.common.errors import ApiError

Table: TypeAlias = Mapping[str, object]


def required(table: Table, key: str) -> str:
    """A text without which the answer means nothing. Raises ApiError."""
    try:
        return json_values.text(table.get(key))
    except ValueError:
        raise ApiError("InvalidAnswer", f"the answer has no {key}; is this endpoint SageMaker's?") from None


def text(table: Table, key: str) -> str:
    """A text, "" if it is absent."""
    return known(json_values.text, table.get(key), "")


def number(table: Table, key: str) -> int | None:
    """A whole number, 0 or more."""
    return known(json_values.whole, table.get(key), None)


def inner(table: Table, key: str) -> Table:
    """A table inside this one."""
    found = table.get(key)
    return found if isinstance(found, Mapping) else {}


def tables(table: Table, key: str) -> Sequence[Table]:
    """A list of tables."""
    found = table.get(key)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list | tuple) else ()


def words(table: Table, key: str) -> tuple[str, ...]:
    """A list of texts."""
    found = table.get(key)
    return tuple(map(str, found)) if isinstance(found, list | tuple) else ()


def texts(table: Table, key: str) -> dict[str, str]:
    """A table of texts, such as the variables of a job."""
    return {name: str(value) for name, value in inner(table, key).items()}


def time(table: Table, key: str) -> datetime | None:
    """A moment. AWS's have a time zone; those of a local job may be seconds since 1970."""
    found = table.get(key)
    if isinstance(found, datetime):
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    return datetime.fromtimestamp(found, UTC) if isinstance(found, int | float) else None
