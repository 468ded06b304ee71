"""The norm of the gradients of all stages of a pipeline. torch's own functions see only one rank's gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist

from algorun_train.parallel.shard.sharded_model import local

from .process_groups import Axes


def norm(gradients: Sequence[torch.Tensor], axes: Axes, order: float = 2.0) -> torch.Tensor:
    """The norm, a float64 scalar on this rank's device, of the gradients that all ranks of the pipeline give together.

    Call it on all ranks of a pipeline, and of all pipelines that hold shares of the same weights; a rank may give none.
    `order` may be infinity.
    """
    largest = math.isinf(order)
    total = torch.zeros((), device=axes.device, dtype=torch.float64)
    if gradients:
        norms = torch.stack([each.double() for each in torch._foreach_norm([local(each) for each in gradients], order)])
        total = norms.max() if largest else norms.pow(order).sum()
    for group in (axes.pp_group, axes.mesh.group if axes.mesh else None):
        if group is not None:
            dist.all_reduce(total, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group=group)
    return total if largest else total.pow(1 / order)


def scale_to(gradients: Sequence[torch.Tensor], limit: float, total: torch.Tensor) -> None:
    """Scales gradients whose norm is `total` in place, so that it is at most `limit`."""
    factor = (limit / (total + 1e-6)).clamp(max=1.0).float()  # as torch's own clipping
    torch._foreach_mul_([local(each) for each in gradients], factor)
