"""smp.step (placeholder): every rank computes the whole model, microbatch by microbatch."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from .microbatches import joined, split
from .session import session


def step(non_split_inputs=(), input_split_axes=None, detach_outputs=True) -> Any:
    if callable(non_split_inputs):
        return step()(non_split_inputs)

    def decorate(work):
        @functools.wraps(work)
        def run(*args, **kwargs):
            now = session()
            now.model.partition()
            now.model.refresh()
            count = now.layout.microbatches
            bound = inspect.signature(work).bind(*args, **kwargs).arguments
            # The model itself is no batch.
            parts = split(bound, count, set(non_split_inputs), input_split_axes or {})
            out = joined([work(**part) for part in parts], detach_outputs)
            now.model.after_step(count)
            return out

        return run

    return decorate
