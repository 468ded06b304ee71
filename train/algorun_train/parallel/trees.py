"""Tensors inside the arguments and results of modules: tuples, lists, dictionaries, slices and dataclasses of them."""

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


def _parts(value: Any) -> dict[Any, Any] | None:
    """What a container holds, by its keys, places or fields; None for what is none."""
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


def _of(value: Any, parts: dict[Any, Any]) -> Any:
    """A container like `value` with other parts."""
    if type(value) is dict:
        return parts
    if isinstance(value, slice):
        return slice(*parts.values())
    if isinstance(value, (tuple, list)):
        return type(value)(*parts.values()) if hasattr(value, "_fields") else type(value)(parts.values())
    # Other mappings and classes (a library's own outputs among them) keep their class and what else they know.
    other = copy.copy(value)
    for key, item in parts.items():
        if isinstance(value, Mapping):
            other[key] = item
        else:
            object.__setattr__(other, key, item)
    return other


def mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """`value` with every tensor exchanged for `change(tensor)`; untouched containers are returned as they are."""
    if isinstance(value, torch.Tensor):
        return change(value)
    parts = _parts(value)
    if parts is None:
        return value
    new = {key: mapped(item, change) for key, item in parts.items()}
    return value if all(new[key] is item for key, item in parts.items()) else _of(value, new)


def zipped(values: Sequence[Any], join: Callable[[list[Any]], Any]) -> Any:
    """One value of the form of the last: each leaf, tensor or not, is `join` of the leaves in its place in all of them.

    Where containers differ in type, length or keys, they are leaves themselves.
    """
    last, many = values[-1], [_parts(value) for value in values]
    own = many[-1]
    if own is None or any(type(value) is not type(last) for value in values):
        return join(list(values))
    if any(parts.keys() != own.keys() for parts in many):
        return join(list(values))
    return _of(last, {key: zipped([parts[key] for parts in many], join) for key in own})


def arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a model's example: a tensor, a tuple of arguments, or a dict of named ones."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example) if isinstance(example, (tuple, list)) else (example,)), {}


def in_order(example: Any) -> Any:
    """The same with named arguments in the order of their names: a batch may have them in another one than an example."""
    return dict(sorted(example.items())) if isinstance(example, Mapping) else example
