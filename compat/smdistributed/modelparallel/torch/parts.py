"""What every kind of part that a rank has of the model does for the replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from algorun_train.parallel.run.gradient_sum import GradientSum, Hook

from .replicas import Turns, Uneven, equalise
from .session import Session


class Part:
    """What every kind of part does for the replicas. `gradients` is what reduces its gradients over them."""

    def __init__(
        self,
        here: Session,
        module: nn.Module,
        roots: list[nn.Module],
        gradients: GradientSum,
        every: int,
        buffers_too: bool,
    ) -> None:
        self._here, self._module, self.roots, self.gradients = here, module, roots, gradients
        self._turns, self._buffers_too = Turns(every), buffers_too
        self.equalise(0)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of this rank, each once, under their names in the whole model."""
        return (each for root in self.roots for each in root.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        return (each for root in self.roots for each in root.named_buffers())

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {name: tensor for root in self.roots for name, tensor in root.state_dict().items()}

    def equalise(self, source: int) -> None:
        """All replicas get the weights and buffers of one."""
        tensors = (*self.named_parameters(), *self.named_buffers())
        equalise((tensor for _, tensor in tensors), self._here.axes.dp_group, source)

    def hook(self, hook: Hook) -> None:
        """Reduces buckets of gradients in the place of the mean."""
        self.gradients.hook = hook

    def joins(self, uneven: Uneven | None) -> None:
        """From now on replicas may be without a batch, as `uneven` says, or none is."""
        self.gradients.replicas_of_mean = uneven.among if uneven else None

    def begin(self, uneven: Uneven | None) -> None:
        """Before a training step."""
        self.joins(uneven)
        if uneven:
            uneven.goes_on(uneven.STEP)
        if self._buffers_too:
            self._equal_buffers(uneven.source if uneven else 0)

    def empty(self, uneven: Uneven, what: int) -> None:
        """`what` the other replicas do, for one that has no batch left: it reduces what earlier steps have left, or zeros."""
        self.joins(uneven)
        if self._buffers_too:
            self._equal_buffers(uneven.source)
        parameters = [parameter for _, parameter in self.named_parameters()]
        if self._turns.between:
            clear(parameters)
        if self._turns.now():
            self.gradients.finish()
            clear(parameters)

    def _equal_buffers(self, source: int) -> None:
        equalise((buffer for _, buffer in self.named_buffers()), self._here.axes.dp_group, source)


def clear(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None
