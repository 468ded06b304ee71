"""Activations that are computed again in the backward pass instead of kept (activation checkpointing)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


def recomputed(
    forward: Callable[..., Any], module: nn.Module, *args: Any, preserve_rng_state: bool = True, **kwargs: Any
) -> Any:  # Any: arguments and results are the user model's own
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
