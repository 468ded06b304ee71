"""Reads untrusted JSON, and converts frozen dataclasses to JSON and back, checked against their type annotations."""

from __future__ import annotations

import enum
import functools
import itertools
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .fast_dataclasses import MISSING, fields, is_dataclass

T = TypeVar("T")

DEEPEST = 200  # levels of nesting; json.dumps() on more could reach the interpreter's limit of 1,000 nested calls


class TooDeepError(ValueError):
    """A JSON text is nested deeper than DEEPEST levels."""


# Strings, and all between brackets. An unterminated string is no JSON: only its quote goes.
_NO_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"|[^]["{}]++|"', re.DOTALL)
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}


def loads(text: str | bytes, constant: Callable[[str], object] | None = None) -> object:
    """The value of a JSON text. Raises ValueError on invalid JSON and on more than DEEPEST levels of nesting.

    `constant` is called for NaN and Infinity (parse_constant of json.loads).
    """
    opening = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    if opening > DEEPEST:
        # Before it is parsed: how deep json.loads() goes differs from Python to Python (1,000 levels in 3.11, 10,000 in 3.13).
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        brackets = _NO_BRACKETS.sub("", text)
        if max(itertools.accumulate(map(_STEPS.__getitem__, brackets)), default=0) > DEEPEST:
            raise TooDeepError(f"nested deeper than {DEEPEST} levels")
    value: object = json.loads(text, parse_constant=constant)
    return value


def to_json(value: object) -> object:
    """`value` for json.dumps: dataclasses and mappings become dictionaries, tuples lists; the rest stays."""
    if is_dataclass(value):
        return fields_of(value)
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    return value


def fields_of(value: object) -> dict[str, object]:
    """The fields of a dataclass instance by name, each as `to_json` makes it. Raises TypeError on anything else."""
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"{value!r} is not a dataclass instance")
    return {f.name: to_json(getattr(value, f.name)) for f in fields(value)}


def from_json(kind: type[T], value: object, where: str = "$") -> T:
    """The dataclass `kind` that `value`, parsed JSON, describes.

    Raises ValueError if a field is missing, unknown or of another type; the message names its place, beginning with
    `where`.
    """
    found: T = _value(kind, value, where)
    return found


# `kind` is any type annotation: a class, `tuple[int, ...]`, `str | None`. Python's typing has no type for these.
def _value(kind: Any, value: object, where: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(origin or kind):
        return _dataclass(origin or kind, args, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where}: {type(value).__name__} is not a list")
        return tuple(_value(args[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, dict):
            raise ValueError(f"{where}: {type(value).__name__} is not an object")
        return {key: _value(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _value(next(arg for arg in args if arg is not type(None)), value, where)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(value)
        except ValueError:
            raise ValueError(
                f"{where}: {value!r} is not one of {', '.join(str(each.value) for each in kind)}"
            ) from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{where}: a number of {len(str(value))} digits is too large") from None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{where}: {value!r} is not {kind.__name__}")
    return value


@functools.cache  # get_type_hints() evaluates every annotation again, and a hub of 512 hosts reads 512 messages/s
def _hints(kind: type) -> dict[str, Any]:  # annotations: see _value
    return typing.get_type_hints(kind)


def _dataclass(kind: type, args: tuple[Any, ...], value: object, where: str) -> object:  # annotations: see _value
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {type(value).__name__} is not an object")
    hints = _hints(kind)
    known = {f.name: f for f in fields(kind)}
    for name in value:
        if name not in known:
            raise ValueError(f"{where}: unknown key {name!r}")
    given: dict[str, object] = {}
    for name, f in known.items():
        if name not in value:
            if f.default is MISSING and f.default_factory is MISSING:
                raise ValueError(f"{where}: {name!r} is missing")
            continue
        hint = args[0] if args and isinstance(hints[name], TypeVar) else hints[name]
        given[name] = _value(hint, value[name], f"{where}.{name}")
    made: object = kind(**given)
    return made
