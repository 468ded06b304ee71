"""Linear modules of which each rank of a tensor group has some rows or columns of the weight (Shoeybi et al. 2019, section 3).

They compute what transformers' styles `colwise` and `rowwise` do, to the bit, but on plain tensors. Its DTensors took 28 of the
72 ms of CPU time of a step with 29 such modules (bench/models.py, torch 2.13).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from .sharded_model import TensorAxis

Forward = Callable[[torch.Tensor], torch.Tensor]


def by_columns(module: Any, axis: TensorAxis) -> None:
    """From now on `module`, which has this rank's outputs, takes the whole input [.., in] and returns its part of the output. Its
    backward pass adds up the input's gradient over the ranks of the group, so call it on all of them. Any: an nn.Linear; torch
    types neither a forward pass that is replaced nor a bias that is None."""
    module.forward = functools.partial(_by_columns, module.forward, axis.group)


def by_rows(module: Any, axis: TensorAxis) -> None:
    """From now on `module`, which has this rank's inputs and no bias, takes its part of the input and returns the whole output
    [.., out]. Its forward pass adds up the output over the ranks of the group, so call it on all of them. Any: as above."""
    assert module.bias is None  # each rank would add it
    module.forward = functools.partial(_by_rows, module.forward, axis.group)


def _by_columns(forward: Forward, group: dist.ProcessGroup, inputs: torch.Tensor) -> torch.Tensor:
    return forward(_SummedGradient.apply(inputs, group))  # type: ignore[no-untyped-call]  # torch's own


def _by_rows(forward: Forward, group: dist.ProcessGroup, inputs: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = _Sum.apply(forward(inputs), group)  # type: ignore[no-untyped-call]  # torch's own
    return output


class _SummedGradient(torch.autograd.Function):
    """The tensor itself; its gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        summed = gradient.contiguous()  # in place: nothing but the module's product has it
        dist.all_reduce(summed, group=ctx.group)
        return summed, None


class _Sum(torch.autograd.Function):
    """The sum of the ranks' tensors, in place; each of them gets the sum's gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.mark_dirty(tensor)
        dist.all_reduce(tensor, group=group)
        return tensor

    @staticmethod
    @once_differentiable
    def backward(_ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None
