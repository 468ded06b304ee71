"""Replicas with different numbers of batches, as in torch's DistributedDataParallel.join."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from algorun_train.common.errors import UserError


class UnevenReplicas:
    """Each step begins with a count of the replicas that still have a batch.

    A replica without a batch takes part in the others' reductions, with gradients of zero, and has their weights in the
    end. The mean is over all replicas, or, unless `by_all`, over the replicas that have a batch.
    """

    STEP, USE = 1, 2
    """what a replica with a batch is about to do: a step, or to use gradients that no step has reduced"""

    def __init__(self, group: dist.ProcessGroup, throw: bool, by_all: bool = True) -> None:
        """`throw`: it is an error if one replica has no batch left and others have."""
        self._group, self._throw, self._by_all = group, throw, by_all
        self._me, self._count = dist.get_rank(group), dist.get_world_size(group)
        self._there = self._count
        self.source = 0
        """a replica that still has batches: buffers are its"""

    def goes_on(self, mine: int) -> int:
        """What the replicas with a batch do now, 0 if none has one. All of them call it; `mine` is what this one does.

        Raises UserError with `throw`.
        """
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
        """Takes part in what the others do (`empty` gets STEP or USE) until no replica has a batch left."""
        while what := self.goes_on(0):
            empty(what)
