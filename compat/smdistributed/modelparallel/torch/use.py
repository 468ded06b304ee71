"""Where gradients are used: optimizers and gradient scalers, torch's own, see those that are reduced."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from smdistributed.script_types import Given, Result

from .session import is_initialized, session


def before_use(parameters: Iterable[torch.Tensor], optimizer: Given = None, steps: bool = False) -> None:
    """As DistributedModel.before_use; nothing where there is no model yet."""
    model = session().model if is_initialized() else None
    if model is not None:
        model.before_use(parameters, optimizer, steps)


def _by(optimizer: Given, steps: bool = False) -> None:
    groups = getattr(optimizer, "param_groups", ())
    before_use((parameter for group in groups for parameter in group["params"]), optimizer, steps)


def _before_step(optimizer: Given, args: tuple[Given, ...], kwargs: dict[str, Given]) -> Result:
    """A hook of torch's for every optimizer; a closure makes the gradients anew, so they are reduced after each call."""
    closure = kwargs["closure"] if "closure" in kwargs else args[1] if len(args) > 1 else None
    if not callable(closure):
        _by(optimizer, steps=True)
        return None

    def reduced() -> Result:
        loss = closure()
        _by(optimizer, steps=True)
        return loss

    if "closure" in kwargs:
        return args, {**kwargs, "closure": reduced}
    return (args[0], reduced, *args[2:]), kwargs


def _after_reduction(method: Callable[..., Result]) -> Callable[..., Result]:
    @functools.wraps(method)
    def use(scaler: Given, optimizer: Given, *args: Given, **kwargs: Given) -> Result:
        if scaler.is_enabled():
            _by(optimizer)
        return method(scaler, optimizer, *args, **kwargs)

    return use


def install() -> None:
    """From now on. A scaler looks for infinite gradients, and replicas that found different ones would part ways."""
    # Not part of a compiled step: it talks to other ranks. What this imports, the first optimizer would import anyway.
    register_optimizer_step_pre_hook(torch.compiler.disable(_before_step))
    scaler: Given = torch.amp.GradScaler
    scaler.unscale_, scaler.step = _after_reduction(scaler.unscale_), _after_reduction(scaler.step)
