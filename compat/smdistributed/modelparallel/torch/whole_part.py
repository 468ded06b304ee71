"""One partition: the whole model on this rank, with or without step functions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from algorun_train.errors import UserError
from algorun_train.parallel.run import gradient_sum

from . import checkpointing
from .parts import Part, clear
from .replicas import Uneven
from .session import Session
from .unreduced import Unreduced


class WholePart(Part):
    """One partition: the module itself, on this rank's device."""

    def __init__(self, here: Session, module: nn.Module, every: int, overlap: bool, buffers_too: bool) -> None:
        module.to(here.axes.device)
        gradients = gradient_sum.GradientSum(module.parameters(), here.axes.dp_group, None, mean=True)
        gradients.counting = False
        super().__init__(here, module, [module], gradients, every, buffers_too)
        self._overlap, self._backwards = overlap and every == 1, 0
        self._unreduced = Unreduced(gradients, here.axes.dp_group, self._equal_buffers if buffers_too else None)
        self._joined, self._scale = False, 1.0
        if here.layout.microbatches > 1:
            for parameter in module.parameters():
                if parameter.requires_grad:
                    parameter.register_hook(self._scaled)
        checkpointing.in_place(module)

    # -- step functions -----------------------------------------------------------------------------------------------

    def begin(self, uneven: Uneven | None) -> None:
        super().begin(uneven)
        self._joined = uneven is not None

    @contextlib.contextmanager
    def microbatches(self, scale: float) -> Iterator[None]:
        """While a step function runs: gradients of loss.backward() count as those of model.backward(loss) do."""
        self._scale = scale
        try:
            yield
        finally:
            self._scale = 1.0

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """While model.backward runs in a step function: its loss is scaled already, and the step's end waits for it."""
        scale, self._scale = self._scale, 1.0
        self.gradients.counting = True
        try:
            yield
        finally:
            self._scale, self.gradients.counting = scale, False

    def _scaled(self, gradient: torch.Tensor) -> torch.Tensor | None:
        return None if self._scale == 1 else gradient * self._scale

    def end(self, backwards: int) -> None:
        """After a step with so many passes of model.backward: gradients are the mean over the replicas, when it is their turn.

        From the second step on they travel while the last pass still runs; for that their number must stay.
        """
        joined, self._joined = self._joined, False
        if not backwards and not joined:
            return  # what loss.backward() may have left is reduced before it is used
        if backwards and self.gradients.passes is not None and backwards != self._backwards:
            raise UserError(
                f"@smp.step functions call model.backward {backwards} times a step, {self._backwards} times before; "
                "allowed: always equally often; fix: smp.DistributedModel(.., overlapping_allreduce=False)"
            )
        if self._turns.now():
            self.gradients.finish()
            self._unreduced.reduced()
        if self.gradients.due:  # loss.backward() after the last model.backward
            self._overlap = False
        self._backwards = backwards
        self.gradients.passes = backwards or None if self._overlap else None

    # -- passes that no step function's end waits for -----------------------------------------------------------------

    def before_use(self, optimizer: torch.optim.Optimizer | None, uneven: Uneven | None) -> None:
        """Reduces gradients that are not: `optimizer` uses them now, or, where it is None, clipping does."""
        if optimizer is None and not self._turns.between:
            return  # they are clipped by themselves, as those of other steps before their turn
        self.joins(uneven)
        self._unreduced.settle(optimizer, uneven)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer has used the gradients as they are now."""
        self._unreduced.stepped(optimizer)

    def holds(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether any of them is reduced over the replicas."""
        return self._unreduced.holds(parameters)

    def empty(self, uneven: Uneven, what: int) -> None:
        if what == uneven.STEP:
            super().empty(uneven, what)
            return
        self.joins(uneven)
        parameters = [parameter for _, parameter in self.named_parameters()]
        clear(parameters)
        self._unreduced.together(uneven.source)
        clear(parameters)
