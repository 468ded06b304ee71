"""Forwards that look at the values of their inputs, as at a mask's, and go on by them. Pure.

A later stage runs the code before its entry as well. What that code looks at has to be there: such inputs cross, and are
looked at for every microbatch anew. Another mask may take another way, so the cut is tried with one.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch

from algorun_train.parallel.trees import leaves, mapped, zipped

from .recorder import Call, Recording


def seen(recordings: Sequence[Recording]) -> frozenset[int]:
    """The inputs that any of these passes looks at."""
    return frozenset().union(*(inputs for recording in recordings for _, inputs in recording.reads))


def other(args: Any, kwargs: Any, inputs: Collection[int]) -> tuple[Any, Any]:
    """An example in which each of `inputs`, by number, is another one that the model may well get."""
    examples = leaves((args, kwargs))
    changed = iter(_other(tensor) if i in inputs else tensor for i, tensor in enumerate(examples))
    return mapped((args, kwargs), lambda _: next(changed))


def _other(tensor: torch.Tensor) -> torch.Tensor:
    """A mask of ones gets padding in its last row, another mask gets none; whole numbers are all the smallest of them."""
    if tensor.is_complex() or not tensor.numel():
        return tensor
    if ((tensor == 0) | (tensor == 1)).all():
        mask = torch.ones_like(tensor)
        if tensor.all():
            last = mask[-1] if mask.dim() > 1 else mask  # of a batch of sequences, or the flags of samples
            (last[..., last.shape[-1] // 2 :] if last.dim() else last).zero_()
        return mask
    return tensor.neg() if tensor.is_floating_point() else tensor.amin().expand_as(tensor).clone()


def varying(recordings: Sequence[Recording]) -> frozenset[str]:
    """Modules, called once, that return more tensors or fewer by the inputs that they look at (None for a mask without
    padding, say), or a number. What they have returned for the example is nothing to go by: every stage calls them."""
    found = set()
    for name in {name for recording in recordings for name in recording.once()}:
        twins = [recording.once()[name] for recording in recordings if name in recording.once()]
        derived = all(value is not None and value.sources is not None for call in twins for value in call.outcome)
        looked = any(_looks(recording, recording.once().get(name)) for recording in recordings)
        if (
            looked
            and derived
            and (_numbers(twins[0]) or any(len(call.outcome) != len(twins[0].outcome) for call in twins))
        ):
            found.add(name)
    return frozenset(found)


def _looks(recording: Recording, call: Call | None) -> bool:
    return call is not None and any(call.begin <= tick <= call.end for tick, _ in recording.reads)


def _numbers(call: Call) -> bool:
    """Whether a call returns something else than tensors and None."""
    found: list[Any] = []
    zipped([call.result], found.extend)
    return any(item is not None and not isinstance(item, torch.Tensor) for item in found)
