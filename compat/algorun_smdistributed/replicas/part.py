"""The part of a model that one rank has, all of it or stages, with the replicas of that part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from algorun_train.parallel.run.gradient_sum import GradientSum, Hook
from algorun_train.parallel.run.process_groups import Axes

from .uneven import UnevenReplicas


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOptions:
    """How replicas keep together."""

    every: int = 1
    """gradients are averaged at the end of every n-th step"""
    overlap: bool = True
    """gradients travel while the last backward pass of a step still runs"""
    no_overlap: str = "overlap=False"
    """how the caller turns `overlap` off, for messages"""
    equal_buffers: bool = True
    """a step begins with the buffers of one replica on all of them"""


class Part:
    """What a rank does for the replicas, whatever part of the model it has. On all replicas."""

    def __init__(self, roots: Sequence[nn.Module], gradients: GradientSum, axes: Axes, options: ReplicaOptions) -> None:
        """`gradients` reduces the part's gradients over the replicas. All replicas get the weights of the first one."""
        self.roots, self.gradients, self.axes, self._options = roots, gradients, axes, options
        self._steps = 0
        self.equalise(0)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of this rank, each once, under their names in the uncut model."""
        return (each for root in self.roots for each in root.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Buffers of this rank, under their names in the uncut model."""
        return (each for root in self.roots for each in root.named_buffers())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers of this rank that are saved."""
        return {name: tensor for root in self.roots for name, tensor in root.state_dict().items()}

    def equalise(self, source: int) -> None:
        """All replicas get the weights and buffers of one."""
        self._equalise((tensor for _, tensor in (*self.named_parameters(), *self.named_buffers())), source)

    def hook(self, hook: Hook) -> None:
        """Reduces buckets of gradients in the place of the mean."""
        self.gradients.hook = hook

    def begin(self, uneven: UnevenReplicas | None) -> None:
        """Before a training step."""
        self._joins(uneven)
        if uneven:
            uneven.goes_on(uneven.STEP)
        if self._options.equal_buffers:
            self._equal_buffers(uneven.source if uneven else 0)

    def empty(self, uneven: UnevenReplicas, what: int) -> None:
        """`what` the other replicas do, for one without a batch: it reduces what earlier steps have left, or zeros."""
        self._joins(uneven)
        if self._options.equal_buffers:
            self._equal_buffers(uneven.source)
        if self._between:
            self._clear()
        if self._turn():
            self.gradients.finish()
            self._clear()

    def _joins(self, uneven: UnevenReplicas | None) -> None:
        """From now on replicas may be without a batch, as `uneven` says, or none is."""
        self.gradients.replicas_of_mean = uneven.among if uneven else None

    def _turn(self) -> bool:
        """Counts a step. Returns whether gradients are averaged at its end."""
        self._steps += 1
        return self._between

    @property
    def _between(self) -> bool:
        """Whether no gradient of an earlier step waits for its turn."""
        return self._steps % self._options.every == 0

    def _clear(self) -> None:
        for _, parameter in self.named_parameters():
            parameter.grad = None

    def _equal_buffers(self, source: int) -> None:
        self._equalise((buffer for _, buffer in self.named_buffers()), source)

    def _equalise(self, tensors: Iterable[torch.Tensor], source: int) -> None:
        if self.axes.dp_group is not None:
            for tensor in tensors:
                dist.broadcast(tensor.data, group=self.axes.dp_group, group_src=source)
