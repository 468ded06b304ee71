"""Data parallelism of the script's model: equal weights at the start, gradients averaged once per step."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist

from algorun_train.errors import UserError


def equalise(tensors: Iterable[torch.Tensor], group: dist.ProcessGroup | None, source: int = 0) -> None:
    """Gives all replicas the values of one, by its rank in the group."""
    if group is not None:
        for tensor in tensors:
            dist.broadcast(tensor.data, group=group, group_src=source)


class Turns:
    """Counts steps: gradients are averaged at the end of every n-th."""

    def __init__(self, every: int) -> None:
        self._every, self._steps = every, 0

    def now(self) -> bool:
        self._steps += 1
        return self.between

    @property
    def between(self) -> bool:
        """Whether no gradient of an earlier step waits for its turn."""
        return self._steps % self._every == 0


class Uneven:
    """Replicas with different numbers of batches, as in DistributedDataParallel.join.

    Each step begins with a count of those that still have one. A replica without takes part in the others' reductions,
    with gradients of zero, and has their weights in the end. The mean is over all replicas, or, unless `by_all`, over
    those that have a batch.
    """

    STEP, USE = 1, 2
    """what a replica with a batch is about to do: a step function, or to use gradients that none has reduced"""

    def __init__(self, group: dist.ProcessGroup | None, throw: bool, by_all: bool = True) -> None:
        self._group, self._throw, self._by_all = group, throw, by_all
        self._me, self._count = dist.get_rank(group), dist.get_world_size(group)
        self._there = self._count
        self.source = 0
        """a replica that still has batches: buffers are its"""

    def goes_on(self, mine: int) -> int:
        """What the replicas with a batch do now, 0 where there is none; called by all of them, `mine` being what this does."""
        flags = torch.zeros(self._count)
        flags[self._me] = mine
        dist.all_reduce(flags, group=self._group)
        there = [rank for rank, flag in enumerate(flags.tolist()) if flag]
        if self._throw and 0 < len(there) < self._count:
            raise UserError(
                f"join: {self._count - len(there)} of {self._count} replicas have no batch left; "
                "fix: equally many batches, or throw_on_early_termination=False"
            )
        if there:
            self.source, self._there = there[0], len(there)
        return int(flags.max())

    def among(self) -> int:
        """How many replicas the mean is over."""
        return self._count if self._by_all else self._there

    def follow(self, empty: Callable[[int], None]) -> None:
        """Takes part in what the others do (STEP or USE, which `empty` is told) until none has a batch left."""
        while what := self.goes_on(0):
            empty(what)
