"""Activation checkpointing: which modules are computed again in the backward pass."""

from __future__ import annotations

from torch import nn

from algorun_smdistributed.script_types import Given, Result
from algorun_train.common.errors import UserError
from algorun_train.parallel.model import recompute

from .model import DistributedModel
from .module_view import ModuleView
from .session import context, placed_model


def set_activation_checkpointing(
    module: nn.Module, preserve_rng_state: bool = True, pack_args_as_tuple: bool = False, strategy: str = "each"
) -> None:
    """Activations of `module` are not kept but computed again. Of a Sequential or a ModuleList, such as a transformer's
    layers: each child by itself ("each"), or runs of neighbours as one ("contiguous", "group_N").

    Before the first step: with several partitions it cuts the model. Before or after smp.DistributedModel.
    """
    if not isinstance(module, nn.Module):
        raise UserError(
            f"set_activation_checkpointing: {type(module).__name__}; allowed: an nn.Module; fix: give a module"
        )
    _check(strategy)
    if isinstance(module, DistributedModel):
        module = module.get_module()
    elif isinstance(module, ModuleView):
        module = module.module
    placed = placed_model()
    for each in module if isinstance(module, (nn.Sequential, nn.ModuleList)) else [module]:
        recompute.mark(each, preserve_rng_state)
        if placed is not None and placed.whole is not None:  # DistributedModel has been made, and will not cut it
            recompute.in_place(each)


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
    if not recompute.is_marked(module):
        recompute.mark(module, preserve_rng_state)
    if context().layout.grid.pp == 1:
        recompute.in_place(module)


def _check(strategy: str) -> None:
    if strategy not in ("each", "contiguous") and not (
        strategy.startswith("group_") and strategy.removeprefix("group_").isdigit()
    ):
        raise UserError(
            f"checkpointing: strategy {strategy!r}; allowed: each, contiguous, group_N; fix: use one of them"
        )
