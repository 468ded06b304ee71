"""Logits of which each rank of a tensor group has some words: their loss and the best word, without all words on one rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from .sharded_model import TensorAxis
from .split import Split


class SplitLogits:
    """Compares logits [.., words of this rank] with labels [..] of all words. `words` says which words a rank has. Call the methods
    on all ranks of the group, with the same labels; all get the same."""

    def __init__(self, axis: TensorAxis, words: Split) -> None:
        self._axis, self._count = axis, words.shape[0]
        ((self._first, self._end),) = words.ranges(axis.index)

    def sum_of_losses(self, logits: torch.Tensor, labels: torch.Tensor, ignored: int) -> torch.Tensor:
        """The sum of cross entropies, a scalar, without labels that are `ignored`. Each rank's gradient is that of its logits."""
        flat, wanted = logits.flatten(0, -2), labels.flatten()
        place = wanted - self._first
        here = (wanted != ignored) & (place >= 0) & (place < self._end - self._first)
        losses: torch.Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]  # torch's own
            flat, torch.where(here, place, 0), here, wanted != ignored, self._axis.group
        )
        return losses

    def best(self, logits: torch.Tensor) -> torch.Tensor:
        """The number of the word with the greatest logit, [..]; the first one of equal ones, as argmax."""
        own, word = _greatest(logits)
        greatest = own.clone()
        dist.all_reduce(greatest, dist.ReduceOp.MAX, group=self._axis.group)
        found = torch.where(own == greatest, word + self._first, self._count)
        dist.all_reduce(found, dist.ReduceOp.MIN, group=self._axis.group)
        return found


def _greatest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The greatest of this rank's logits [.., words], and where it is; -inf at 0 if there are none: more ranks than words fill."""
    if logits.shape[-1]:
        found = logits.max(dim=-1)
        return found.values, found.indices
    rows = logits.shape[:-1]
    return logits.new_full(rows, -torch.inf), logits.new_zeros(rows, dtype=torch.int64)


class _CrossEntropy(torch.autograd.Function):
    """Of this rank's logits [labels, words], with `place` of each label's word among them where it is `here`; labels that are not
    `counted` add nothing.

    It computes what torch's `loss_parallel` does, to the bit, but on plain tensors. For each step that one propagates the shapes of
    three operations anew, which takes milliseconds, and its backward pass has to lie within a context.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        place: torch.Tensor,
        here: torch.Tensor,
        counted: torch.Tensor,
        group: dist.ProcessGroup,
    ) -> torch.Tensor:
        greatest, _ = _greatest(logits)
        dist.all_reduce(greatest, dist.ReduceOp.MAX, group=group)
        shifted = logits - greatest[:, None]
        sums = shifted.exp().sum(dim=-1)
        dist.all_reduce(sums, group=group)
        chances = shifted.sub_(sums.log_()[:, None])  # logarithms
        of_labels = chances.new_zeros(len(chances))
        if chances.shape[-1]:
            of_labels = torch.where(here, chances.gather(1, place[:, None])[:, 0], 0)
        dist.all_reduce(of_labels, group=group)
        ctx.save_for_backward(chances, place, here, counted)
        return torch.where(counted, -of_labels, 0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        chances, place, here, counted = ctx.saved_tensors
        found = chances.exp()
        if chances.shape[-1]:
            found.scatter_add_(1, place[:, None], -here.to(found.dtype)[:, None])
        return found.mul_(torch.where(counted, gradient, 0)[:, None]), None, None, None, None
