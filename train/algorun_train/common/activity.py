"""Tells the launcher what this rank's time is spent on, if a launcher is there."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def say_group(number: int) -> None:
    """Tells the launcher that this rank does the same work as the others that say `number`: it compares their times."""
    steps = sys.modules.get("algorun_rank_steps")
    activities = steps.activities if steps is not None else None
    if activities is not None:
        activities.say_group(number)


def say_workers(number: int) -> None:
    """Tells the launcher how many processes prepare the batches of this rank."""
    steps = sys.modules.get("algorun_rank_steps")
    activities = steps.activities if steps is not None else None
    if activities is not None:
        activities.say_workers(number)


def add_work(samples: float, tokens: float = 0.0, flops: float = 0.0) -> None:
    """Tells the launcher this rank's share of what a step of the job has trained on; 0.0: not known.

    `flops`: operations on the model's numbers, forward and backward, without what is computed again.
    """
    steps = sys.modules.get("algorun_rank_steps")
    activities = steps.activities if steps is not None else None
    if activities is not None:
        activities.add_work(samples, tokens, flops)


def say_batch(place: str) -> None:
    """Tells the launcher where the batch of the next optimizer step is in the data, for a value in it that is not finite."""
    steps = sys.modules.get("algorun_rank_steps")
    watch = steps.nonfinite if steps is not None else None
    if watch is not None:
        watch.say_place(place)


def say_norms(parameters: list[torch.Tensor], norms: list[torch.Tensor]) -> None:
    """Tells the launcher the norms, scalars, of the gradients of these parameters, which are about to be clipped by other means than
    torch's clip_grad_norm_."""
    steps = sys.modules.get("algorun_rank_steps")
    watch = steps.nonfinite if steps is not None else None
    if watch is not None:
        watch.note_norms(parameters, norms)


class Activity:
    """`with Activity(name):` what the time in the block is spent on. A block within it counts for itself only.

    Names: data, forward, backward, exchange (waiting for other ranks and talking to them), optimizer, saving, evaluation.
    The module `algorun_rank_steps` is there in a rank that algorun has started, once torch is imported.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        steps = sys.modules.get("algorun_rank_steps")
        activities = steps.activities if steps is not None else None
        if activities is not None:
            activities.begin(self._name)

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        steps = sys.modules.get("algorun_rank_steps")
        activities = steps.activities if steps is not None else None
        if activities is not None:
            activities.end()
