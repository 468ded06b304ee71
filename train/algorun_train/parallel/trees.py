"""Tensors inside the arguments and results of modules: tuples, lists, dictionaries, slices and dataclasses of them.

`Any` on this page is a value of the user's model: any Python object.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors in `value`, in a fixed order; an object that is neither container nor tensor has none."""
    found: list[torch.Tensor] = []

    def add(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    mapped(value, add)
    return found


def _items(value: Any) -> dict[Any, Any] | None:
    """The items of a container by key, place or field; None for any other value."""
    if isinstance(value, torch.Tensor):
        return None
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, (tuple, list)):
        return dict(enumerate(value))
    if isinstance(value, slice):  # x[:, :longest]
        return {"start": value.start, "stop": value.stop, "step": value.step}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _with_items(value: Any, items: dict[Any, Any]) -> Any:
    """A container of the class of `value` with other items."""
    if type(value) is dict:
        return items
    if isinstance(value, slice):
        return slice(*items.values())
    if isinstance(value, (tuple, list)):
        return type(value)(*items.values()) if hasattr(value, "_fields") else type(value)(items.values())
    # Other mappings and classes (a library's own outputs among them) keep their class and their other attributes.
    other = copy.copy(value)
    for key, item in items.items():
        if isinstance(value, Mapping):
            other[key] = item
        else:
            object.__setattr__(other, key, item)
    return other


def mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """`value` with every tensor replaced by `change(tensor)`. A container in which nothing changed is returned itself."""
    if isinstance(value, torch.Tensor):
        return change(value)
    items = _items(value)
    if items is None:
        return value
    new = {key: mapped(item, change) for key, item in items.items()}
    return value if all(new[key] is item for key, item in items.items()) else _with_items(value, new)


def zipped(values: Sequence[Any], join: Callable[[list[Any]], Any]) -> Any:
    """One value nested like the last of `values`: each leaf, tensor or not, is `join` of the leaves in its place in all.

    Where containers differ in type, length or keys, they are leaves themselves.
    """
    last, rows = values[-1], [_items(value) for value in values]
    own = rows[-1]
    if own is None or any(type(value) is not type(last) for value in values):
        return join(list(values))
    known = [items for items in rows if items is not None and items.keys() == own.keys()]
    if len(known) < len(rows):
        return join(list(values))
    return _with_items(last, {key: zipped([items[key] for items in known], join) for key in own})


def arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of an example: a tensor, a tuple of arguments, or a dictionary of named ones."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example) if isinstance(example, (tuple, list)) else (example,)), {}


def in_order(example: Any) -> Any:
    """`example` with named arguments sorted by name: a batch may name them in another order than the example."""
    return dict(sorted(example.items())) if isinstance(example, Mapping) else example
