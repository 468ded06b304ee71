"""Activations that are computed again in the backward pass instead of kept (activation checkpointing)."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .segments import modules_around

# Attributes of marked modules, which copies of a model have too.
MARK, WRAPPED = "_algorun_recomputed", "_algorun_recomputes"


def recomputed(
    forward: Callable[..., object],
    module: nn.Module,
    *args: object,
    preserve_rng_state: bool = True,
    **kwargs: Any,  # Any: torch types its own options among them
) -> object:
    """forward(*args, **kwargs), a call of `module`, that keeps no activations: its backward pass computes them again.

    BatchNorm counts a batch once although its forward pass runs twice. `preserve_rng_state`: the second forward pass
    draws the same random numbers as the first.
    """
    return checkpoint(
        forward, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state,
        context_fn=lambda: (contextlib.nullcontext(), _frozen_statistics(module)), **kwargs,
    )  # fmt: skip


@contextlib.contextmanager
def _frozen_statistics(module: nn.Module) -> Iterator[None]:
    """The running statistics of BatchNorm stay as they are."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    before = [
        (norm.momentum, None if norm.num_batches_tracked is None else norm.num_batches_tracked.clone())
        for norm in norms
    ]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, before, strict=True):
            norm.momentum = momentum
            if norm.num_batches_tracked is not None and count is not None:
                norm.num_batches_tracked.copy_(count)


def mark(module: nn.Module, preserve_rng_state: bool) -> None:
    """From now on `in_place` and `in_stages` make `module` compute its activations again."""
    module.__dict__[MARK] = preserve_rng_state


def is_marked(module: nn.Module) -> bool:
    """Whether `mark` was called for it."""
    return MARK in module.__dict__


def marks(model: nn.Module) -> dict[str, bool]:
    """The marked modules of `model`, by name, each with its `preserve_rng_state`."""
    return {name: module.__dict__[MARK] for name, module in model.named_modules() if is_marked(module)}


def in_stages(
    model: nn.Module, stages: Mapping[str, set[int]], parts: Mapping[int, Any]
) -> None:  # Any: stages of a cut
    """Marked modules of `model` compute their activations again in the stage that has all of them.

    `stages` are the stages that a module's units lie in, by its name; `parts` are this rank's stages. A module that is
    split over stages is not recomputed, with a warning on the ranks that have something of it.
    """
    marked = marks(model)
    lie = {name: stages.get(name) or _of_the_unit_around(name, stages) for name in marked}
    for name in marked:
        if len(lie[name]) > 1 and lie[name] & set(parts):
            warnings.warn(f"checkpointing of {name} is ignored: it is split over several stages", stacklevel=2)
    for index, part in parts.items():
        part.recompute({name: flag for name, flag in marked.items() if lie[name] == {index}})


def _of_the_unit_around(name: str, stages: Mapping[str, set[int]]) -> set[int]:
    """The stage of a module within a unit. Of one that the forward does not call: its parent's, or none."""
    known = [stages[outer] for outer in modules_around(name) if outer in stages]
    return known[-1] if known and len(known[-1]) == 1 else set()


def in_place(model: nn.Module) -> None:
    """Marked modules compute their activations again; for a model that is not cut."""
    for module in model.modules():
        if is_marked(module) and WRAPPED not in module.__dict__:
            module.__dict__[WRAPPED] = True
            module.forward = functools.partial(_again, module.forward, module)


def _again(forward: Callable[..., object], module: nn.Module, *args: object, **kwargs: Any) -> object:  # as above
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return recomputed(forward, module, *args, preserve_rng_state=module.__dict__[MARK], **kwargs)
