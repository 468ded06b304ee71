"""Models whose forward reads values of its inputs, such as `if mask.all()`. Pure.

A stage runs the code before its entry as well, without values. If that code reads values of an input, the input crosses
all boundaries, and every stage reads it again for every microbatch. Another mask may lead to another branch, so the cut is
verified with another mask too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from algorun_train.parallel.model.trees import Arguments, leaves, mapped, zipped

from .recorder import Call, Recording


def seen(recordings: Sequence[Recording]) -> frozenset[int]:
    """The numbers of the inputs whose values any of these passes reads."""
    return frozenset().union(*(inputs for recording in recordings for _, inputs in recording.reads))


def other(args: tuple[object, ...], kwargs: dict[str, object], inputs: Collection[int]) -> Arguments:
    """An example in which each of `inputs`, by number, has other values that the model may well get."""
    examples = leaves((args, kwargs))
    changed = iter(_other(tensor) if i in inputs else tensor for i, tensor in enumerate(examples))
    return mapped((args, kwargs), lambda _: next(changed))


def _other(tensor: torch.Tensor) -> torch.Tensor:
    """A mask of ones gets padding in its last row, any other mask none. Whole numbers become the smallest among them."""
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
    """Modules, called once, whose results vary with the values that they read: sometimes None instead of a tensor, or a
    number. Their results for the example say nothing about another batch, so every stage calls them itself."""
    found = set()
    for name in {name for recording in recordings for name in recording.once()}:
        calls = [recording.once()[name] for recording in recordings if name in recording.once()]
        derived = all(value is not None and value.sources is not None for call in calls for value in call.outcome)
        looked = any(_looks(recording, recording.once().get(name)) for recording in recordings)
        if (
            looked
            and derived
            and (_numbers(calls[0]) or any(len(call.outcome) != len(calls[0].outcome) for call in calls))
        ):
            found.add(name)
    return frozenset(found)


def _looks(recording: Recording, call: Call | None) -> bool:
    return call is not None and any(call.begin <= tick <= call.end for tick, _ in recording.reads)


def _numbers(call: Call) -> bool:
    """Whether a call returns anything beside tensors and None."""
    found: list[object] = []
    zipped([call.result], found.extend)
    return any(item is not None and not isinstance(item, torch.Tensor) for item in found)
