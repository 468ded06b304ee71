"""Tensors inside the arguments and results of modules: tuples, lists, dictionaries and dataclasses of them."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors in `value`, in a fixed order; what is no container and no tensor has none."""
    found: list[torch.Tensor] = []
    mapped(value, lambda tensor: found.append(tensor) or tensor)
    return found


def mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """`value` with every tensor exchanged for `change(tensor)`; untouched containers are returned as they are."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        new = {key: mapped(item, change) for key, item in value.items()}
        if all(new[key] is item for key, item in value.items()):
            return value
        if type(value) is dict:
            return new
        # Other mappings (a library's own output classes among them) keep their class and what else they know.
        other = copy.copy(value)
        for key, item in new.items():
            other[key] = item  # type: ignore[index]
        return other
    if isinstance(value, (tuple, list)):
        items = [mapped(item, change) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        new = {key: mapped(item, change) for key, item in fields.items()}
        if all(new[key] is item for key, item in fields.items()):
            return value
        other = copy.copy(value)
        for key, item in new.items():
            object.__setattr__(other, key, item)
        return other
    return value


def zipped(values: Sequence[Any], join: Callable[[list[Any]], Any]) -> Any:
    """One value of the form of the last: each leaf, tensor or not, is `join` of the leaves in its place in all of them.

    Where containers differ in type, length or keys, they are leaves themselves.
    """
    last = values[-1]
    if any(type(value) is not type(last) for value in values):
        return join(list(values))
    if isinstance(last, Mapping):
        if any(value.keys() != last.keys() for value in values):
            return join(list(values))
        new = {key: zipped([value[key] for value in values], join) for key in last}
        if type(last) is dict:
            return new
        other = copy.copy(last)
        for key, item in new.items():
            other[key] = item  # type: ignore[index]
        return other
    if isinstance(last, (tuple, list)):
        if any(len(value) != len(last) for value in values):
            return join(list(values))
        items = [zipped(row, join) for row in zip(*values, strict=True)]
        return type(last)(*items) if hasattr(last, "_fields") else type(last)(items)
    if dataclasses.is_dataclass(last) and not isinstance(last, type):
        other = copy.copy(last)
        for field in dataclasses.fields(last):
            object.__setattr__(other, field.name, zipped([getattr(value, field.name) for value in values], join))
        return other
    return join(list(values))


def arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a model's example: a tensor, a tuple of arguments, or a dict of named ones."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example) if isinstance(example, (tuple, list)) else (example,)), {}
