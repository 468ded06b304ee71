"""Tensors inside the arguments and results of modules: tuples, lists, dictionaries, slices and dataclasses of them."""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

T = TypeVar("T")
Arguments = tuple[tuple[object, ...], dict[str, object]]
"""positional and keyword arguments of a module's call"""

SINGLE = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size})
"""types that hold no tensor: most arguments have one of them, and to look for containers takes longer than to look here"""


def leaves(value: object) -> list[torch.Tensor]:
    """The tensors in `value`, in a fixed order; an object that is neither container nor tensor has none."""
    found: list[torch.Tensor] = []

    def add(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    mapped(value, add)
    return found


def _items(value: object) -> dict[object, object] | None:
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


# Any: types cannot say that a class makes a container from items
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


def mapped(value: T, change: Callable[[torch.Tensor], torch.Tensor]) -> T:
    """`value` with every tensor replaced by `change(tensor)`. A container in which nothing changed is returned itself."""
    kind = type(value)
    if kind in SINGLE or (kind is dict and not value):
        return value
    if isinstance(value, torch.Tensor):
        return change(value)  # type: ignore[return-value]  # a tensor for a tensor: the type stays
    if kind is tuple or kind is list:
        row: T = _mapped_row(value, change)
        return row
    items = _items(value)
    if items is None:
        return value
    new = {key: mapped(item, change) for key, item in items.items()}
    if all(new[key] is item for key, item in items.items()):
        return value
    changed: T = _with_items(value, new)
    return changed


# Any: a tuple or list, of whatever type
def _mapped_row(row: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """As `mapped`, for a tuple or list, in a fifth of the time: stages do it for every call of a unit."""
    items = [mapped(item, change) for item in row]
    return row if all(map(operator.is_, items, row)) else type(row)(items)


def zipped(values: Sequence[object], join: Callable[[list[object]], object]) -> object:
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


def arguments(example: object) -> Arguments:
    """Positional and keyword arguments of an example: a tensor, a tuple of arguments, or a dictionary of named ones."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example) if isinstance(example, (tuple, list)) else (example,)), {}


def in_order(example: object) -> object:
    """`example` with named arguments sorted by name: a batch may name them in another order than the example."""
    return dict(sorted(example.items())) if isinstance(example, Mapping) else example
