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
    try:
        found: T = _reader(kind)(value)  # type: ignore[arg-type]  # a class is hashable
    except _MismatchError as error:
        raise ValueError(f"{where}{error.place}: {error.why}") from None
    return found


class _MismatchError(Exception):
    """A value is not of its kind. `place`: from the value that was read first, such as `.ranks[3]`."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why, self.place = why, ""


Read = Callable[[object], Any]  # a reader of one kind of value


# `kind` is any type annotation: a class, `tuple[int, ...]`, `str | None`. Python's typing has no type for these.
# One reader for each kind, made once: a hub of 1,000 hosts reads 1,200 messages/s.
@functools.cache
def _reader(kind: Any) -> Read:  # annotations: see above
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(origin or kind):
        return _dataclass_reader(origin or kind, args)
    if origin is tuple:
        return _tuple_reader(args[0])
    if origin is Mapping:
        return _mapping_reader(args[1])
    if origin in (typing.Union, types.UnionType):
        return _union_reader(args)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enum_reader(kind)
    return _float if kind is float else _plain_reader(kind)


def _tuple_reader(kind: Any) -> Read:  # annotations: see _reader
    read, same = _reader(kind), {kind} if kind in (bool, float, int, str) else set()

    def read_tuple(value: object) -> object:
        if not isinstance(value, list):
            raise _MismatchError(f"{type(value).__name__} is not a list")
        if set(map(type, value)) <= same:  # nothing to convert
            return tuple(value)
        return tuple(_below(read, item, f"[{index}]") for index, item in enumerate(value))

    return read_tuple


def _mapping_reader(kind: Any) -> Read:  # annotations: see _reader
    read = _reader(kind)

    def read_mapping(value: object) -> object:
        if not isinstance(value, dict):
            raise _MismatchError(f"{type(value).__name__} is not an object")
        return {key: _below(read, item, f".{key}") for key, item in value.items()}

    return read_mapping


def _union_reader(args: tuple[Any, ...]) -> Read:  # annotations: see _reader
    read, optional = _reader(next(arg for arg in args if arg is not type(None))), type(None) in args
    return lambda value: None if value is None and optional else read(value)


def _enum_reader(kind: type[enum.Enum]) -> Read:
    def read_enum(value: object) -> object:
        try:
            return kind(value)
        except ValueError:
            raise _MismatchError(f"{value!r} is not one of {', '.join(str(each.value) for each in kind)}") from None

    return read_enum


def _float(value: object) -> float:
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise _MismatchError(f"a number of {len(str(value))} digits is too large") from None
    if not isinstance(value, float):
        raise _MismatchError(f"{value!r} is not float")
    return value


def _plain_reader(kind: type) -> Read:
    def read_plain(value: object) -> object:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise _MismatchError(f"{value!r} is not {kind.__name__}")
        return value

    return read_plain


def _dataclass_reader(kind: type, args: tuple[Any, ...]) -> Read:  # annotations: see _reader
    hints = typing.get_type_hints(kind)
    kinds = {f.name: args[0] if args and isinstance(hints[f.name], TypeVar) else hints[f.name] for f in fields(kind)}
    readers = {name: (_reader(each), f".{name}") for name, each in kinds.items()}
    required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]

    def read_dataclass(value: object) -> object:
        if not isinstance(value, dict):
            raise _MismatchError(f"{type(value).__name__} is not an object")
        for name in value:
            if name not in readers:
                raise _MismatchError(f"unknown key {name!r}")
        for name in required:
            if name not in value:
                raise _MismatchError(f"{name!r} is missing")
        made: object = kind(**{name: _below(readers[name][0], item, readers[name][1]) for name, item in value.items()})
        return made

    return read_dataclass


def _below(read: Read, value: object, place: str) -> Any:  # annotations: see _reader
    """What `read` makes of a value that lies at `place` in another one."""
    try:
        return read(value)
    except _MismatchError as error:
        error.place = place + error.place
        raise
