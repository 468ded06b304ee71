"""Measures what one microbatch costs in each segment. One segment is on the device at a time, so the whole need not fit."""

import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from algorun_train.parallel.segments import Cutting, TensorSpec
from algorun_train.parallel.trees import leaves

from .partitioner import Segment

LEAST_REPEATS = 3
# Names of what autocast computes in; None: nothing else than the weights' own type.
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def profile(
    cutting: Cutting,
    device: torch.device | str,
    repeats: int = LEAST_REPEATS,
    precision: str = "fp32",
    loss: Callable[[Any], torch.Tensor] | None = None,
) -> list[Segment]:
    """The cost of every segment on `device`: the median of `repeats` (at least three) after a pass to warm up.

    `precision` is "fp32", "bf16" or "fp16" (autocast). Each segment gets what the one before it has returned for the example,
    so whole numbers stay valid. Saved bytes of successive segments add up: what both sides of a boundary save counts
    once, with the first. `loss` of the model's output counts with the last segment: over many classes it needs more
    than that segment itself. Weights, gradients, buffers and random numbers are afterwards as they were.
    """
    device, costs = torch.device(device), []
    received = [tensor.detach() for tensor in cutting.example]
    counted = [True] * len(received)  # the model's inputs are the loader's
    users = Counter(name for segment in cutting.segments for name in segment.parameters)
    for number, segment in enumerate(cutting.segments):
        with _alone(cutting, number, device) as stage:
            entry = [_entry(tensor, device, bool(number)) for tensor in received]
            weights = [parameter for parameter in stage.parameters() if parameter.requires_grad]
            forward, backward = [], []
            for turn in range(1 + max(repeats, LEAST_REPEATS)):
                kept: dict[int, torch.UntypedStorage] = {}
                begin = _now(device)
                with _weighing(kept) if turn == 0 else contextlib.nullcontext():
                    with _precision(device, precision):
                        result = stage(*entry)
                    outputs = leaves(loss(result) if loss and number == len(cutting.segments) - 1 else result)
                middle = _now(device)
                _backward(outputs, weights + entry)
                if turn == 0:
                    before = [tensor for tensor, done in zip(entry, counted, strict=True) if done]
                    saved = _without(kept, [*stage.parameters(), *stage.buffers(), *before])
                    counted = [_address(tensor) in saved for tensor in outputs]
                else:
                    forward.append(middle - begin)
                    backward.append(_now(device) - middle)
            received = [tensor.detach().to("cpu") for tensor in outputs]
            sizes = {name: p.numel() * p.element_size() for name, p in stage.named_parameters()}
            boundary = sum(TensorSpec.of(tensor).bytes for tensor in entry)
            del result, outputs, entry, weights
        costs.append(
            Segment(
                segment.name,
                segment.units,
                statistics.median(forward),
                statistics.median(backward),
                sum(storage.nbytes() for storage in saved.values()),
                sum(sizes.values()),
                boundary,
                tuple((name, size) for name, size in sizes.items() if users[name] > 1),
            )
        )
    return costs


def combined(
    profiles: Iterable[Sequence[Segment]], middle: Callable[[Iterable[float]], float] = statistics.fmean
) -> list[Segment]:
    """One profile out of several of the same segments: the mean (or another middle) of their times."""
    return [
        replace(
            same[0],
            forward_s=middle(cost.forward_s for cost in same),
            backward_s=middle(cost.backward_s for cost in same),
        )
        for same in zip(*profiles, strict=True)
    ]


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


def _weighing(kept: dict[int, torch.UntypedStorage]) -> Any:
    """Collects the storages that autograd keeps for the backward pass. They are held: no address is used twice."""

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[_address(tensor)] = tensor.untyped_storage()
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)


def _without(kept: dict[int, torch.UntypedStorage], tensors: Sequence[torch.Tensor]) -> dict[int, torch.UntypedStorage]:
    others = {_address(tensor) for tensor in tensors}
    return {address: storage for address, storage in kept.items() if address not in others}


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _backward(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
    ends = [output for output in outputs if output.requires_grad]
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    if ends and wanted:
        torch.autograd.grad(ends, wanted, [torch.ones_like(end) for end in ends], allow_unused=True)


def _precision(device: torch.device, precision: str) -> Any:
    dtype = PRECISIONS[precision]
    return torch.autocast(device.type, dtype) if dtype else contextlib.nullcontext()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
