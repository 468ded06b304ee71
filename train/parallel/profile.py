"""Measures what one microbatch costs in each segment. One segment is on the device at a time, so the whole need not fit."""

import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .cutting import Cutting, TensorSpec
from .partitioner import Segment
from .trees import leaves

LEAST_REPEATS = 3


def profile(
    cutting: Cutting, device: torch.device | str, repeats: int = LEAST_REPEATS, precision: str = "fp32"
) -> list[Segment]:
    """The cost of every segment on `device`: the median of `repeats` (at least three) after a pass to warm up.

    `precision` is "fp32" or "bf16" (autocast). Each segment gets what the one before it has returned for the example,
    so whole numbers stay valid. Weights, gradients, buffers and random numbers are afterwards as they were.
    """
    device, costs = torch.device(device), []
    received = [tensor.detach() for tensor in cutting.example]
    for number, segment in enumerate(cutting.segments):
        with _alone(cutting, number, device) as stage:
            entry = [_entry(tensor, device, bool(number)) for tensor in received]
            weights = [parameter for parameter in stage.parameters() if parameter.requires_grad]
            forward, backward = [], []
            for turn in range(1 + max(repeats, LEAST_REPEATS)):
                begin, outputs, saved = _forward(stage, entry, device, precision, weigh=turn == 0)
                middle = _now(device)
                _backward(outputs, weights + entry)
                if turn == 0:
                    bytes_ = saved
                else:
                    forward.append(middle - begin)
                    backward.append(_now(device) - middle)
            received = [tensor.detach().to("cpu") for tensor in outputs]
            size = sum(p.numel() * p.element_size() for p in stage.parameters())
            boundary = sum(TensorSpec.of(tensor).bytes for tensor in entry)
            del outputs, entry, weights
        costs.append(
            Segment(
                segment.name,
                segment.units,
                statistics.median(forward),
                statistics.median(backward),
                bytes_,
                size,
                boundary,
            )
        )
    return costs


def entries(cutting: Cutting, device: torch.device | str, precision: str = "fp32") -> list[tuple[TensorSpec, ...]]:
    """What enters each segment on `device` under `precision`, and last the model's output, from one forward pass."""
    device, found = torch.device(device), []
    received = [tensor.detach() for tensor in cutting.example]
    for number in range(len(cutting.segments)):
        found.append(tuple(TensorSpec.of(tensor) for tensor in received))
        with _alone(cutting, number, device) as stage, torch.no_grad(), _precision(device, precision):
            received = [tensor.to("cpu") for tensor in leaves(stage(*(tensor.to(device) for tensor in received)))]
    return [*found, tuple(TensorSpec.of(tensor) for tensor in received)]


@contextlib.contextmanager
def _alone(cutting: Cutting, number: int, device: torch.device) -> Iterator[nn.Module]:
    """One segment in training mode on `device`, with buffers of its own; its weights return to where they were."""
    stage = cutting.stage(number, number + 1)
    if not stage.training:
        stage.train()
    for module in stage.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = buffer if buffer is None else buffer.detach().to(device, copy=True)
    home = {parameter: parameter.data for parameter in stage.parameters()}
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices):
            for parameter, data in home.items():
                parameter.data = data.to(device)
            yield stage
    finally:
        for parameter, data in home.items():
            parameter.data = data


def _entry(tensor: torch.Tensor, device: torch.device, received: bool) -> torch.Tensor:
    """The model's own inputs need no gradient; everything that another stage has sent does."""
    return tensor.to(device, copy=True).requires_grad_(received and tensor.is_floating_point())


def _forward(
    stage: nn.Module, entry: list[torch.Tensor], device: torch.device, precision: str, *, weigh: bool
) -> tuple[float, list[torch.Tensor], int]:
    """When it began, what came out, and the bytes kept for the backward pass (0 unless `weigh`)."""
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage  # held, so that no other storage gets the address
        return tensor

    hooks: Any = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    begin = _now(device)
    with hooks if weigh else contextlib.nullcontext(), _precision(device, precision):
        outputs = leaves(stage(*entry))
    if not weigh:
        return begin, outputs, 0
    for output in outputs:
        keep(output.detach())
    for tensor in [*stage.parameters(), *stage.buffers(), *entry]:
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    return begin, outputs, sum(storage.nbytes() for storage in kept.values())


def _backward(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
    ends = [output for output in outputs if output.requires_grad]
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    if ends and wanted:
        torch.autograd.grad(ends, wanted, [torch.ones_like(end) for end in ends], allow_unused=True)


def _precision(device: torch.device, precision: str) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
