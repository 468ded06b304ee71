"""JSON from outside, bounded; frozen dataclasses to JSON and back, checked against their own annotations."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

DEEPEST = 200  # objects and lists within each other; the interpreter's limit of 1,000 counts calls besides


def loads(text: str | bytes, constant: Callable[[str], object] | None = None) -> Any:
    """The value of a JSON text. Raises ValueError on anything else, also on nesting that nobody could print again.

    `constant` is called for NaN and Infinity, as json's parse_constant.
    """
    try:
        value = json.loads(text, parse_constant=constant)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST} levels") from None
    opening = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    level, depth = [value], 0
    while opening > DEEPEST and level:
        depth += 1
        if depth > DEEPEST:
            raise ValueError(f"nested deeper than {DEEPEST} levels")
        level = [
            item
            for each in level
            if isinstance(each, (list, dict))
            for item in (each.values() if isinstance(each, dict) else each)
        ]
    return value


def to_json(value: Any) -> Any:
    """Dataclasses and mappings as objects, tuples as lists; everything else as it is."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    return value


def from_json(kind: Any, value: Any, where: str = "$") -> Any:
    """The value of type `kind` that `value` describes. Raises ValueError that names the place of a misfit."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(origin or kind):
        return _dataclass(origin or kind, args, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where}: {type(value).__name__} is not a list")
        return tuple(from_json(args[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, dict):
            raise ValueError(f"{where}: {type(value).__name__} is not an object")
        return {key: from_json(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return from_json(next(arg for arg in args if arg is not type(None)), value, where)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"{where}: {value!r} is none of {', '.join(str(each.value) for each in kind)}") from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{where}: a number of {len(str(value))} digits") from None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{where}: {value!r} is not {kind.__name__}")
    return value


@functools.cache  # it evaluates every annotation anew, and a hub with 512 hosts reads 512 messages a second
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _dataclass(kind: Any, args: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {type(value).__name__} is not an object")
    hints = _hints(kind)
    known = {f.name: f for f in dataclasses.fields(kind)}
    for name in value:
        if name not in known:
            raise ValueError(f"{where}: unknown key {name!r}")
    fields: dict[str, Any] = {}
    for name, f in known.items():
        if name not in value:
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
                raise ValueError(f"{where}: {name!r} is missing")
            continue
        hint = args[0] if args and isinstance(hints[name], TypeVar) else hints[name]
        fields[name] = from_json(hint, value[name], f"{where}.{name}")
    return kind(**fields)
