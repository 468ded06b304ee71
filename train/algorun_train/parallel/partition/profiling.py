"""Measures what one microbatch costs in each segment. One segment is on the device at a time: the model need not fit."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from algorun_train.parallel.model.memory import with_values
from algorun_train.parallel.model.precision import AUTOCAST
from algorun_train.parallel.model.segments import Cutting, TensorSpec
from algorun_train.parallel.model.trees import leaves

from .costs import SegmentProfile

LEAST_REPEATS = 3


def profile(
    cutting: Cutting,
    device: torch.device | str,
    repeats: int = LEAST_REPEATS,
    precision: str = "fp32",
    loss: Callable[[Any], torch.Tensor] | None = None,  # Any: the model's output, of the user's own type
) -> list[SegmentProfile]:
    """The costs of every segment on `device`: medians of `repeats` passes (at least three) after a first pass.

    `precision` is a name of `AUTOCAST`. Each segment gets the output of the segment before it, so that token numbers
    stay valid. A tensor that both sides of a boundary save counts once, with the segment before the boundary. If there
    is a `loss` of the model's output, it counts with the last segment: over many classes it needs more than the segment.
    Weights, gradients, buffers and random numbers are as before afterwards. Each rank may call it alone.
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
            del result, outputs, entry, weights, kept
        costs.append(
            SegmentProfile(
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
    profiles: Iterable[Sequence[SegmentProfile]], middle: Callable[[Iterable[float]], float] = statistics.fmean
) -> list[SegmentProfile]:
    """One profile out of several ranks' profiles of the same segments: the mean (or another `middle`) of their times."""
    return [
        replace(
            same[0],
            forward_s=middle(cost.forward_s for cost in same),
            backward_s=middle(cost.backward_s for cost in same),
        )
        for same in zip(*profiles, strict=True)
    ]


def entries(cutting: Cutting, device: torch.device | str, precision: str = "fp32") -> list[tuple[TensorSpec, ...]]:
    """The tensors that enter each segment on `device` under `precision`, and last the model's output. One forward pass."""
    device, found = torch.device(device), []
    received = [tensor.detach().clone() for tensor in cutting.example]  # a model may change its arguments in place
    for number in range(len(cutting.segments)):
        found.append(tuple(TensorSpec.of(tensor) for tensor in received))
        with _alone(cutting, number, device) as stage, torch.no_grad(), _precision(device, precision):
            received = [tensor.to("cpu") for tensor in leaves(stage(*(tensor.to(device) for tensor in received)))]
    return [*found, tuple(TensorSpec.of(tensor) for tensor in received)]


@contextlib.contextmanager
def _alone(cutting: Cutting, number: int, device: torch.device) -> Iterator[nn.Module]:
    """One segment in training mode on `device`, with copies of its buffers. Afterwards its weights are where they were.
    Weights without memory have some meanwhile, with random values."""
    stage = cutting.stage(number, number + 1)
    if not stage.training:
        stage.train()
    for module in stage.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = buffer if buffer is None else buffer.detach().to(device, copy=True)
    home = {parameter: parameter.data for parameter in stage.parameters() if not parameter.is_meta}
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices), with_values(stage, device):
            for parameter, data in home.items():
                parameter.data = data.to(device)
            yield stage
    finally:
        for parameter, data in home.items():
            parameter.data = data


def _entry(tensor: torch.Tensor, device: torch.device, received: bool) -> torch.Tensor:
    """A tensor received from another stage needs a gradient, an input of the model does not."""
    return tensor.to(device, copy=True).requires_grad_(received and tensor.is_floating_point())


def _weighing(kept: dict[int, torch.UntypedStorage]) -> contextlib.AbstractContextManager[object]:
    """Collects the storages that autograd saves for the backward pass. `kept` keeps them alive: no address is reused."""

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


def _precision(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    dtype = AUTOCAST[precision]
    return torch.autocast(device.type, dtype) if dtype else contextlib.nullcontext()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
