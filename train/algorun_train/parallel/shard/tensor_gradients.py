"""The gradients of a model whose layers the ranks of a tensor group compute together: sums over the group, and one norm."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from .sharded_model import REPLICA, ShardMesh, local
from .split import TensorParts


class TensorGradients:
    """The gradients of `weights`, all that this rank has, by name. `parts` says of which of them each rank of the group has a part,
    or one summand of the gradient."""

    def __init__(self, weights: Mapping[str, nn.Parameter], mesh: ShardMesh, parts: TensorParts) -> None:
        assert mesh.tensor is not None
        self._mesh, self._axis = mesh, mesh.tensor
        split, partial = parts.splits, parts.partial
        trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
        self._partial = [weight for name, weight in trained.items() if name in partial]
        self._split = [weight for name, weight in trained.items() if name in split]
        self._of_parts = {id(weight) for weight in self._split}
        self._whole = [weight for name, weight in trained.items() if name not in split]
        self._device = self._axis.mesh.device_type  # the rank's own; there may be no weight

    @property
    def ranks(self) -> int:
        """The ranks that compute the same batch."""
        return self._axis.ranks

    @property
    def index(self) -> int:
        """The number of this rank among them."""
        return self._axis.index

    @property
    def replicas_group(self) -> dist.ProcessGroup:
        """The ranks that hold the same parts, of a model that is not sharded."""
        return self._mesh.mesh.get_group(REPLICA)

    def is_split(self, weight: torch.Tensor) -> bool:
        """Whether each rank of the group has a part of this weight."""
        return id(weight) in self._of_parts

    def add_up(self) -> None:
        """Adds up the gradients of which each rank of the group has a summand. Call it on all ranks, once all passes of a step
        have added theirs, and before the norm is taken."""
        found = [local(weight.grad) for weight in self._partial if weight.grad is not None]
        if not found:
            return
        flat = torch.cat([gradient.reshape(-1) for gradient in found])
        dist.all_reduce(flat, group=self._axis.group)
        for gradient, added in zip(found, flat.split([each.numel() for each in found]), strict=True):
            gradient.copy_(added.view_as(gradient))

    def clip(self, limit: float) -> None:
        """Scales all gradients so that their norm over all ranks of a replica is at most `limit`. Call it on all ranks."""
        sums = torch.stack([self._squares(weights) for weights in (self._whole, self._split)])
        if any(isinstance(weight, DTensor) for weight in (*self._whole, *self._split)):
            dist.all_reduce(sums, group=self._mesh.shard_group)
        of_split = sums[1:].clone()
        dist.all_reduce(of_split, group=self._axis.group)
        norm = (sums[0] + of_split[0]).sqrt()
        factor = (limit / (norm + 1e-6)).clamp(max=1.0).float()  # as torch's own clipping
        torch._foreach_mul_(self._gradients((*self._whole, *self._split)), factor)

    def _squares(self, weights: Collection[nn.Parameter]) -> torch.Tensor:
        gradients = self._gradients(weights)
        if not gradients:
            return torch.zeros((), dtype=torch.float64, device=self._device)
        return torch.stack(torch._foreach_norm(gradients)).double().square().sum()

    @staticmethod
    def _gradients(weights: Collection[nn.Parameter]) -> list[torch.Tensor]:
        return [local(weight.grad) for weight in weights if weight.grad is not None]
