"""Activation checkpointing: which modules are computed again in the backward pass."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import torch
from torch import nn

from algorun_train.errors import UserError
from algorun_train.parallel import recompute
from smdistributed.script_types import Given, Result

from .session import session

MARK, WRAPPED = "_smp_checkpointed", "_smp_wrapped"


def set_activation_checkpointing(
    module: nn.Module, preserve_rng_state: bool = True, pack_args_as_tuple: bool = False, strategy: str = "each"
) -> None:
    """Activations of `module` are not kept but computed again. Of a Sequential: each child by itself ("each"), or runs of
    neighbours as one ("contiguous", "group_N")."""
    if not isinstance(module, nn.Module):
        raise UserError(
            f"set_activation_checkpointing: {type(module).__name__}; allowed: an nn.Module; fix: give a module"
        )
    _check(strategy)
    chosen = list(module) if isinstance(module, nn.Sequential) else [module]
    for each in chosen:
        each.__dict__[MARK] = preserve_rng_state


def checkpoint(module: nn.Module, *args: Given, preserve_rng_state: bool = True, **kwargs: Given) -> Result:
    """module(*args) with its activations computed again in the backward pass. To be called in a model's forward."""
    if not isinstance(module, nn.Module):
        raise UserError(
            f"smp.checkpoint: {type(module).__name__}; allowed: an nn.Module, not a function; fix: put it into a module"
        )
    _mark(module, preserve_rng_state)
    return module(*args, **kwargs)


def checkpoint_sequential(
    sequential_module: nn.Sequential,
    input: Given,
    strategy: str = "each",
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,
) -> Result:
    """sequential_module(input) with the activations of its layers computed again in the backward pass."""
    if not isinstance(sequential_module, nn.Sequential):
        raise UserError(
            f"smp.checkpoint_sequential: {type(sequential_module).__name__}; allowed: nn.Sequential; fix: smp.checkpoint"
        )
    _check(strategy)
    if isinstance(input, tuple) and not pack_args_as_tuple:
        raise UserError("smp.checkpoint_sequential: a tuple of inputs; fix: pack_args_as_tuple=True")
    for each in sequential_module:
        _mark(each, preserve_rng_state)
    return sequential_module(input)


def _mark(module: nn.Module, preserve_rng_state: bool) -> None:
    """At the first call, which with several partitions is the one that looks for cuts; the stages then do it."""
    module.__dict__.setdefault(MARK, preserve_rng_state)
    if session().layout.grid.pp == 1:
        in_place(module)


def _check(strategy: str) -> None:
    if strategy not in ("each", "contiguous") and not (
        strategy.startswith("group_") and strategy.removeprefix("group_").isdigit()
    ):
        raise UserError(
            f"checkpointing: strategy {strategy!r}; allowed: each, contiguous, group_N; fix: use one of them"
        )


def in_stages(model: nn.Module, stages: dict[str, set[int]], parts: dict[int, Given]) -> None:
    """Marked modules of `model` compute their activations again in the stage that has all of them.

    `stages` holds the stages that a module's units lie in, `parts` those of this rank. One that is split does not, with
    a warning on the ranks that have something of it.
    """
    marked = {name: module.__dict__[MARK] for name, module in model.named_modules() if MARK in module.__dict__}
    for name in marked:
        if len(stages.get(name, ())) > 1 and stages[name] & set(parts):
            warnings.warn(f"checkpointing of {name} is ignored: it is split over several stages", stacklevel=2)
    for index, part in parts.items():
        part.recompute({name: flag for name, flag in marked.items() if stages.get(name) == {index}})


def in_place(model: nn.Module) -> None:
    """Marked modules compute their activations again; for a model that is not cut."""
    for module in model.modules():
        if MARK in module.__dict__ and WRAPPED not in module.__dict__:
            module.__dict__[WRAPPED] = True
            module.forward = functools.partial(_again, module.forward, module)


def _again(forward: Callable[..., Result], module: nn.Module, *args: Given, **kwargs: Given) -> Result:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return recompute.recomputed(forward, module, *args, preserve_rng_state=module.__dict__[MARK], **kwargs)
