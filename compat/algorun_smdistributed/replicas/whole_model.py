"""An uncut model on each rank, with its replicas: trained step by step, or by backward passes at any place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.parallel.run.gradient_sum import GradientSum
from algorun_train.parallel.run.process_groups import Axes

from .part import Part, ReplicaOptions
from .uneven import UnevenReplicas
from .unreduced import UnreducedGradients


class WholeModel(Part):
    """The module itself, on this rank's device. Gradients become the mean over the replicas.

    A step is `begin`, backward passes within `counted`, `end`. What other backward passes leave is reduced by
    `before_use`.
    """

    def __init__(
        self, module: nn.Module, axes: Axes, options: ReplicaOptions, gradients: GradientSum | None = None
    ) -> None:
        """`gradients`: those of its parameters if nothing else reduces them."""
        module.to(axes.device)
        gradients = gradients or GradientSum(module.parameters(), axes.dp_group, None, mean=True)
        gradients.counting = False
        super().__init__([module], gradients, axes, options)
        self._overlap, self._backwards = options.overlap and options.every == 1, 0
        self._unreduced = UnreducedGradients(
            gradients, axes.dp_group, self._equal_buffers if options.equal_buffers else None
        )
        self._joined, self._scale, self._scales = False, 1.0, False

    # -- steps --------------------------------------------------------------------------------------------------------

    def begin(self, uneven: UnevenReplicas | None) -> None:
        super().begin(uneven)
        self._joined = uneven is not None

    @contextlib.contextmanager
    def scaled(self, scale: float) -> Iterator[None]:
        """While a step runs: gradients of passes outside of `counted` are multiplied by `scale`."""
        if scale != 1 and not self._scales:  # only then: a hook costs time in every pass
            self._scales = True
            for parameter in self.roots[0].parameters():
                if parameter.requires_grad:
                    parameter.register_hook(self._scaled)
        self._scale = scale
        try:
            yield
        finally:
            self._scale = 1.0

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """While a backward pass runs that the step's end waits for. Its loss is scaled already."""
        scale, self._scale = self._scale, 1.0
        self.gradients.counting = True
        try:
            yield
        finally:
            self._scale, self.gradients.counting = scale, False

    def _scaled(self, gradient: torch.Tensor) -> torch.Tensor | None:
        return None if self._scale == 1 else gradient * self._scale

    def end(self, backwards: int) -> None:
        """After a step of this many passes within `counted`: gradients are the mean over the replicas, if it is their turn.

        From the second step on they travel while the last pass still runs, for which the number of passes must stay.
        Raises UserError if it changes.
        """
        joined, self._joined = self._joined, False
        if not backwards and not joined:
            return  # what other passes may have left is reduced before it is used
        if backwards and self.gradients.passes is not None and backwards != self._backwards:
            raise UserError(
                f"a step has {backwards} backward passes, {self._backwards} before; allowed: always equally many; "
                f"fix: {self._options.no_overlap}"
            )
        if self._turn():
            self.gradients.finish()
            self._unreduced.reduced()
        if self.gradients.due:  # another pass after the last one that counts
            self._overlap = False
        self._backwards = backwards
        self.gradients.passes = backwards or None if self._overlap else None

    # -- passes that no step's end waits for --------------------------------------------------------------------------

    def before_use(self, optimizer: torch.optim.Optimizer | None, uneven: UnevenReplicas | None) -> None:
        """Reduces gradients that are not: `optimizer` uses them now, or, if it is None, clipping does."""
        if optimizer is None and not self._between:
            return  # they are clipped by themselves, as those of other steps before their turn
        self._joins(uneven)
        self._unreduced.settle(optimizer, uneven)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer has used the gradients as they are now."""
        self._unreduced.stepped(optimizer)

    def holds(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether any of them is reduced over the replicas."""
        return self._unreduced.holds(parameters)

    def empty(self, uneven: UnevenReplicas, what: int) -> None:
        if what == uneven.STEP:
            super().empty(uneven, what)
            return
        self._joins(uneven)
        self._clear()
        self._unreduced.together(uneven.source)
        self._clear()
