"""A second tree of modules over the same parameters: what is patched in it leaves the user's model as it was."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import torch
from torch import nn

from algorun_train.errors import UserError

# Attributes that need no copy, and those that are empty in most modules.
PLAIN = (type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device, torch.Size, FunctionType)
EMPTY = (dict, OrderedDict, list, set)


def twin(model: nn.Module, exchange: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """A copy of `model`'s modules that holds `exchange(tensor)` for each of its parameters and buffers.

    Other attributes are deep-copied, save tensors, which are shared. Raises UserError for a model that can't be copied.
    It is what copy.deepcopy does, ten times as fast: a trial makes one for every segment.
    """
    memo: dict[int, Any] = {}
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
                vars(memo[id(module)]).update((name, _copied(value, memo)) for name, value in vars(module).items())
    except Exception as error:
        raise UserError(
            f"model {type(model).__name__} cannot be cut: copying its modules failed ({type(error).__name__}: {error}); "
            "allowed: modules that copy.deepcopy accepts; fix: keep handles, locks and groups out of the modules"
        ) from error
    return memo[id(model)]


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, PLAIN):
        return value
    if type(value) in EMPTY and not value:
        return type(value)()
    return copy.deepcopy(value, memo)


def tensors(model: nn.Module) -> Iterable[torch.Tensor]:
    """Every parameter and buffer, a shared one once."""
    yield from model.parameters()
    yield from model.buffers()


def names(model: nn.Module) -> dict[int, list[str]]:
    """id of each parameter and buffer -> all its global names, the first one first."""
    found: dict[int, list[str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(tensor), []).append(name)
    for name, tensor in model.named_buffers(remove_duplicate=False):
        found.setdefault(id(tensor), []).append(name)
    return found


def on_meta(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor without memory."""
    empty = tensor.detach().to("meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def on_cpu(model: nn.Module) -> nn.Module:
    """The model itself, or a copy whose parameters and buffers are on the CPU where some are elsewhere."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu":
            return tensor
        there = tensor.detach().cpu()
        return nn.Parameter(there, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else there

    return model if all(tensor.device.type == "cpu" for tensor in tensors(model)) else twin(model, moved)


def disown(model: nn.Module, foreign: Callable[[torch.Tensor], bool]) -> None:
    """Takes foreign parameters and buffers out of the registries of `model`'s modules: they stay plain attributes."""
    for module in model.modules():
        for registry in (module._parameters, module._buffers):
            for name in [n for n, tensor in registry.items() if tensor is not None and foreign(tensor)]:
                module.__dict__[name] = registry.pop(name)
                module._non_persistent_buffers_set.discard(name)
