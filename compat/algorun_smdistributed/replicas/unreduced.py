"""Gradients that are reduced when something uses them: an optimizer, a gradient scaler, clipping.

Until then the gradients of several backward passes add up, as they do in a script without replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from weakref import WeakSet

import torch
import torch.distributed as dist

from algorun_train.parallel.run.gradient_sum import GradientSum

from .uneven import UnevenReplicas


class UnreducedGradients:
    """What is left to reduce, for gradients that `gradients` (a GradientSum with mean) reduces over `group`.

    Replicas tell each other whether there is anything, so all of them know: a replica whose passes have reached no
    parameter takes part. Nothing is sent if a step has reduced since the optimizer's last step.
    """

    def __init__(
        self, gradients: GradientSum, group: dist.ProcessGroup | None, equal: Callable[[int], None] | None
    ) -> None:
        """`equal(replica)` gives all replicas the buffers of one, after a reduction."""
        self._gradients, self._group, self._equal = gradients, group, equal
        self._known = {id(parameter) for parameter in gradients.parameters()}
        self._by_step = False
        self._stepped: WeakSet[torch.optim.Optimizer] = WeakSet()

    def holds(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether any of them is reduced here."""
        return any(id(parameter) in self._known for parameter in parameters)

    def reduced(self) -> None:
        """A step has reduced the gradients, on all replicas."""
        self._by_step = True
        self._stepped.clear()

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer has used the gradients as they are now."""
        self._stepped.add(optimizer)

    def settle(self, optimizer: torch.optim.Optimizer | None, uneven: UnevenReplicas | None) -> None:
        """Before `optimizer`, or something else if it is None, uses the gradients. On all replicas with a batch."""
        if self._group is None:
            return
        used = optimizer in self._stepped if optimizer is not None else len(self._stepped) > 0
        if self._by_step and not used and not self._gradients.due:
            return
        if uneven:
            uneven.goes_on(uneven.USE)
        self.together(uneven.source if uneven else 0)

    def together(self, source: int) -> None:
        """Reduces if any replica has something to reduce. On all of them. Buffers become those of replica `source`."""
        due = torch.tensor([float(self._gradients.due)])
        dist.all_reduce(due, dist.ReduceOp.MAX, group=self._group)
        if not due.item():
            return
        parameters = self._gradients.parameters()
        there = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
        dist.all_reduce(there, dist.ReduceOp.MAX, group=self._group)
        self._gradients.finish()
        for parameter, anywhere in zip(parameters, there.tolist(), strict=True):
            if not anywhere:
                parameter.grad = None  # as without replicas: an optimizer leaves it alone
        if self._equal is not None:
            self._equal(source)
        self._by_step = False
