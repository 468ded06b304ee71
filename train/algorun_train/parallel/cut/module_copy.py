"""Copies a tree of modules over the same parameters: patching the copy leaves the user's model as it is."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import torch
from torch import nn

from algorun_train.common.errors import UserError

# Attributes that need no copy, and those that are empty in most modules.
PLAIN = (type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device, torch.Size, FunctionType)
EMPTY = (dict, OrderedDict, list, set)
Memo = dict[int, Any]  # Any: copies of any type, by the id of the original, as copy.deepcopy has them


def copy_modules(model: nn.Module, exchange: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """A copy of `model`'s modules with `exchange(tensor)` in the place of each parameter and buffer.

    Other tensors are shared with `model`, all other attributes are copied as by copy.deepcopy, which takes ten times as
    long: verifying a cut makes a copy for every segment. Raises UserError for a model that cannot be copied.
    """
    memo: Memo = {}
    modules = list(model.modules())
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, torch.Tensor):
                memo[id(value)] = value
    for tensor in tensors(model):
        memo[id(tensor)] = exchange(tensor)
    special = [module for module in modules if hasattr(module, "__deepcopy__")]
    for module in modules:
        if not hasattr(module, "__deepcopy__"):
            memo[id(module)] = object.__new__(type(module))
    try:
        for module in special:
            copy.deepcopy(module, memo)
        for module in modules:
            if not hasattr(module, "__deepcopy__"):
                memo[id(module)].__dict__.update((name, _copied(value, memo)) for name, value in vars(module).items())
    except Exception as error:
        raise UserError(
            f"model {type(model).__name__} cannot be cut: copying its modules failed ({type(error).__name__}: {error}); "
            "allowed: modules that copy.deepcopy accepts; fix: keep handles, locks and groups out of the modules"
        ) from error
    copied: nn.Module = memo[id(model)]
    return copied


def _copied(value: object, memo: Memo) -> object:
    if isinstance(value, PLAIN):
        return value
    if type(value) in EMPTY and not value:
        return type(value)()
    return copy.deepcopy(value, memo)


def tensors(model: nn.Module) -> Iterable[torch.Tensor]:
    """Every parameter and buffer once."""
    yield from model.parameters()
    yield from model.buffers()


def names(model: nn.Module) -> dict[int, list[str]]:
    """All names of each parameter and buffer in the model, the first one first, by the id of the tensor."""
    found: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), []).append(name)
    for name, buffer in model.named_buffers(remove_duplicate=False):
        found.setdefault(id(buffer), []).append(name)
    return found


def on_meta(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor without memory."""
    empty = tensor.detach().to("meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def on_cpu(model: nn.Module) -> nn.Module:
    """The model itself if all its tensors are on the CPU, else a copy of it on the CPU."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu":
            return tensor
        there = tensor.detach().cpu()
        return nn.Parameter(there, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else there

    return model if all(tensor.device.type == "cpu" for tensor in tensors(model)) else copy_modules(model, moved)


def disown(model: nn.Module, foreign: Callable[[torch.Tensor], bool]) -> None:
    """Makes plain attributes of foreign parameters and buffers: the modules of `model` no longer list them."""
    for module in model.modules():
        for registry in (module._parameters, module._buffers):
            for name in [n for n, tensor in registry.items() if tensor is not None and foreign(tensor)]:
                module.__dict__[name] = registry.pop(name)
                module._non_persistent_buffers_set.discard(name)
