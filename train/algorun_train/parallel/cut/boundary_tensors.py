"""The tensors that cross a boundary: floating-point tensors that all get gradients, as pipelines of torch expect."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import torch

# Whole numbers travel as the same bits; those of one byte as their values, which float16 holds exactly.
CARRIERS = {torch.int64: torch.float64, torch.int32: torch.float32, torch.int16: torch.float16}
SMALL = (torch.bool, torch.uint8, torch.int8)


def pack(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` as a tensor that can carry a gradient. Raises TypeError for a type that cannot be sent."""
    if tensor.is_floating_point():
        return tensor
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype in CARRIERS:
        return tensor.contiguous().view(CARRIERS[tensor.dtype])
    if tensor.dtype in SMALL:
        return tensor.to(torch.float16)
    raise TypeError(f"a tensor of {tensor.dtype} can't be sent to the next stage")


def unpack(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The inverse of `pack`, for a tensor that was of `dtype`."""
    if dtype.is_floating_point:
        return tensor
    if dtype.is_complex:
        return torch.view_as_complex(tensor.contiguous())
    tensor = tensor.detach()
    return tensor.contiguous().view(dtype) if dtype in CARRIERS else tensor.to(dtype)


def connect(
    outputs: Sequence[torch.Tensor], entries: Sequence[torch.Tensor], untouched: Collection[int], *, crossing: bool
) -> tuple[torch.Tensor, ...]:
    """`outputs`, connected with `entries` in autograd: every float output has a gradient, and every entry gets one.

    A pipeline sends a gradient back for every tensor that it has received. Masks and whole numbers have no gradient of
    their own: the `untouched` ones (places among `entries`) get zeros. If gradients reach all entries anyway, `outputs`
    are returned as they are. `crossing`: the outputs go to another stage.
    """
    if not torch.is_grad_enabled():
        return tuple(outputs)
    if crossing:
        outputs = [output if output.requires_grad else output.detach().requires_grad_() for output in outputs]
    loose = [entries[i] for i in sorted(untouched) if entries[i].requires_grad]
    passed = any(output is entry for output in outputs for entry in entries)
    if not loose and not passed:
        return tuple(outputs)
    floats = [i for i, output in enumerate(outputs) if output.is_floating_point()]
    joined = list(outputs)
    for i, output in zip(floats, _connected(len(floats), *(outputs[i] for i in floats), *loose), strict=True):
        joined[i] = output
    return tuple(joined)


def _connected(count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    found: tuple[torch.Tensor, ...] = _Connect.apply(count, *tensors)  # type: ignore[no-untyped-call]  # torch's own
    return found


class _Context(Protocol):
    """What autograd keeps from the forward pass of `_Connect` for its backward pass."""

    count: int
    loose: list[tuple[torch.Size, torch.dtype, torch.device]]


class _Connect(torch.autograd.Function):
    """Passes the first `count` tensors on; the others get zeros as their gradients."""

    @staticmethod
    def forward(ctx: _Context, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.count = count
        ctx.loose = [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors[count:]]
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        zeros = (torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.loose)
        return None, *gradients[: ctx.count], *zeros
