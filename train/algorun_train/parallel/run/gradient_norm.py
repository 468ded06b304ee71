"""The norm of the gradients of all stages of a pipeline. torch's own functions see only one rank's gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist

from algorun_train.parallel.shard.sharded_model import local

from .process_groups import Axes


def of_each(gradients: Sequence[torch.Tensor], order: float) -> list[torch.Tensor]:
    """The norms, scalars, of this rank's gradients, or of its shares of them."""
    return list(torch._foreach_norm([local(each) for each in gradients], order)) if gradients else []


def over_stages(
    norms: Sequence[torch.Tensor], axes: Axes, order: float, of_parts: Sequence[torch.Tensor] = ()
) -> torch.Tensor:
    """The norm, a float64 scalar on this rank's device, of the gradients that all ranks of the pipeline give together. `norms`:
    those of this rank, of `of_each`; `of_parts`: those of weights of which each rank of its tensor group has a part.

    Call it on all ranks of a pipeline, of their tensor groups, and of all pipelines that hold shares of the same weights; a rank
    may give none.
    `order` may be infinity.
    """
    largest = math.isinf(order)
    operation = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM

    def joined(each: Sequence[torch.Tensor]) -> torch.Tensor:
        if not each:
            return torch.zeros((), device=axes.device, dtype=torch.float64)
        own = torch.stack([norm.double() for norm in each])
        return own.max() if largest else own.pow(order).sum()

    total = joined(norms)
    if axes.tensor:
        parts = joined(of_parts)
        dist.all_reduce(parts, operation, group=axes.tensor.group)
        total = torch.maximum(total, parts) if largest else total + parts
    for group in (axes.pp_group, axes.shard_mesh.shard_group if axes.shard_mesh else None):
        if group is not None:
            dist.all_reduce(total, operation, group=group)
    return total if largest else total.pow(1 / order)


def scale_to(gradients: Sequence[torch.Tensor], limit: float, total: torch.Tensor) -> None:
    """Scales gradients whose norm is `total` in place, so that it is at most `limit`."""
    if not gradients:  # a stage may have no weight
        return
    factor = (limit / (total + 1e-6)).clamp(max=1.0).float()  # as torch's own clipping
    torch._foreach_mul_([local(each) for each in gradients], factor)
