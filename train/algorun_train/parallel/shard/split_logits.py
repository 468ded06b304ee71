"""Logits of which each rank of a tensor group has some words: their loss and the best word, without all words on one rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional

from .sharded_model import TensorAxis
from .split import Split


class SplitLogits:
    """Compares logits [.., words of this rank] with labels [..] of all words. `words` says which words a rank has. Call the methods
    on all ranks of the group, with the same labels; all get the same."""

    def __init__(self, axis: TensorAxis, words: Split) -> None:
        self._axis, self._count, self._inside = axis, words.shape[0], False
        ((self._first, self._end),) = words.ranges(axis.index)

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        """Around the backward pass of `sum_of_losses`: torch asks for it. Forward passes may lie within it, as a pipeline's do."""
        if self._inside:  # torch's own context would end the outer one
            yield
            return
        self._inside = True
        try:
            with loss_parallel():
                yield
        finally:
            self._inside = False

    def sum_of_losses(self, logits: torch.Tensor, labels: torch.Tensor, ignored: int) -> torch.Tensor:
        """The sum of cross entropies, a scalar, without labels that are `ignored`."""
        flat = logits.flatten(0, -2)
        shape = torch.Size((len(flat), self._count))
        parts = DTensor.from_local(
            flat, self._axis.mesh, (Shard(1),), run_check=False, shape=shape, stride=(self._count, 1)
        )
        with self.backward():
            loss = functional.cross_entropy(parts, labels.flatten(), ignore_index=ignored, reduction="sum")
        assert isinstance(loss, DTensor)
        return loss.to_local()

    def best(self, logits: torch.Tensor) -> torch.Tensor:
        """The number of the word with the greatest logit, [..]; the first one of equal ones, as argmax."""
        if logits.shape[-1]:
            own, word = logits.max(dim=-1)
        else:  # more ranks than words would fill
            own, word = (
                logits.new_full(logits.shape[:-1], -torch.inf),
                logits.new_zeros(logits.shape[:-1], dtype=torch.int64),
            )
        greatest = own.clone()
        dist.all_reduce(greatest, dist.ReduceOp.MAX, group=self._axis.group)
        found = torch.where(own == greatest, word + self._first, self._count)
        dist.all_reduce(found, dist.ReduceOp.MIN, group=self._axis.group)
        return found
