"""Verifies a cut: the stages in turn must compute what the uncut model computes, gradients included."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from algorun_train.parallel.model.segments import TensorSpec
from algorun_train.parallel.model.trees import leaves, mapped

from .module_copy import copy_modules, names

SEED = 20


@dataclass(frozen=True, slots=True)
class Result:
    """What a run has computed: the tensors of the output; gradients (only in training) and buffers by name."""

    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Crossing:
    """What entered a stage when the cut was verified."""

    specs: tuple[TensorSpec, ...]
    untouched: frozenset[int]  # entries that no gradient has reached


def joined(crossings: Sequence[Crossing]) -> Crossing:
    """One stage's crossings with several examples as one: an entry that no gradient reaches in one of them is untouched."""
    return Crossing(crossings[0].specs, frozenset().union(*(each.untouched for each in crossings)))


def _private(model: nn.Module, training: bool) -> nn.Module:
    """A copy of `model` with the same parameters and copies of its buffers: a run leaves BatchNorm of the model as it is."""
    copied = copy_modules(model, lambda tensor: tensor if isinstance(tensor, nn.Parameter) else tensor.detach().clone())
    if copied.training != training:
        copied.train(training)
    return copied


def run_uncut(
    model: nn.Module,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    training: bool,
) -> Result:
    """The result of the uncut model."""
    model = _private(model, training)
    with fixed(model, training):
        args, kwargs = mapped(
            (args, kwargs), lambda tensor: tensor.detach().clone()
        )  # some models write to their arguments
        outputs = leaves(model(*args, **kwargs))
        gradients: dict[str, torch.Tensor | None] = {}
        if training:
            trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
            gradients = dict(zip(trained, _back(outputs, list(trained.values()), _seeds(outputs)), strict=True))
    return Result([tensor.detach() for tensor in outputs], gradients, dict(model.named_buffers()))


def run_cut(
    model: nn.Module, stages: Sequence[Callable[[nn.Module], nn.Module]], entry: list[torch.Tensor], training: bool
) -> tuple[Result, list[Crossing]]:
    """The result of the stages in turn, and what entered each stage. `stages` build them from a copy of the model."""
    model = _private(model, training)
    made = [make(model) for make in stages]
    known = names(model)
    with fixed(model, training):
        runs: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
        received = [tensor.detach().clone() for tensor in entry]
        for stage in made:
            outputs = leaves(stage(*received))
            runs.append((received, outputs))
            received = [
                tensor.detach().requires_grad_(training) if tensor.is_floating_point() else tensor for tensor in outputs
            ]
        outputs = runs[-1][1]
        gradients: dict[str, torch.Tensor | None] = {}
        crossings: list[Crossing] = []
        flowing = _seeds(outputs) if training else []
        for number, (stage, (received, sent)) in reversed(list(enumerate(zip(made, runs, strict=True)))):
            untouched: frozenset[int] = frozenset()
            if training:
                trained = [p for p in stage.parameters() if p.requires_grad]
                entries = received if number else []
                got = _back(sent, [*trained, *entries], flowing)
                for parameter, gradient in zip(trained, got, strict=False):
                    name = known[id(parameter)][0]
                    gradients[name] = _sum(gradients.get(name), gradient)  # over the stages that hold it
                flowing = got[len(trained) :]
                untouched = frozenset(i for i, gradient in enumerate(flowing) if gradient is None)
            crossings.insert(0, Crossing(tuple(TensorSpec.of(tensor) for tensor in received), untouched))
    buffers = {name: buffer for stage in made for name, buffer in stage.named_buffers()}
    return Result(outputs, gradients, buffers), crossings


def differences(one: Result, other: Result, training: bool) -> str | None:
    """The first difference between two runs; None if they agree.

    In training outputs and buffers must be equal, gradients equal to rounding. In evaluation outputs too only to rounding:
    there torch's transformer layers use other kernels while a TorchFunctionMode is active.
    """
    if len(one.outputs) != len(other.outputs):
        return "the output has another number of tensors"
    for mine, its in zip(one.outputs, other.outputs, strict=True):
        if not _same(mine, its, exact=training):
            return f"the output differs in {'training' if training else 'evaluation'}"
    for name, gradient in one.gradients.items():
        if not _same(gradient, other.gradients.get(name), exact=False):
            return f"the gradient of {name} differs"
    for name, buffer in one.buffers.items():
        if name in other.buffers and not _same(buffer, other.buffers[name], exact=True):
            return f"buffer {name} differs"
    return None


def _sum(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    return other if one is None else one if other is None else one + other


def _same(one: torch.Tensor | None, other: torch.Tensor | None, *, exact: bool) -> bool:
    if one is None or other is None:
        # No gradient and a gradient of zeros train the same.
        return all(tensor is None or not tensor.any() for tensor in (one, other))
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if torch.equal(one, other):
        return True
    if not one.is_floating_point() and not one.is_complex():
        return False
    if exact:
        return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    # Gradients of several uses of a tensor may be added in another order, and on a GPU some sums have no fixed order.
    scale = one.detach().abs().nan_to_num().max().item()
    slack = 64 * torch.finfo(one.dtype).eps * scale
    return torch.allclose(one, other, rtol=0, atol=slack, equal_nan=True)


def _seeds(outputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """The gradients of the output: the same random numbers in every run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED + 1)
        return [
            torch.randn(tensor.shape, dtype=torch.float32).to(tensor.device, tensor.dtype)
            if tensor.requires_grad
            else None
            for tensor in outputs
        ]


def _back(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], gradients: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None and o.requires_grad]
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    if not pairs or not wanted:
        return [None] * len(inputs)
    found = iter(torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True))
    return [next(found) if tensor.requires_grad else None for tensor in inputs]


@contextlib.contextmanager
def fixed(model: nn.Module, training: bool) -> Iterator[None]:
    """Equal random numbers, deterministic algorithms where torch has them, and gradients only in training."""
    devices = sorted({tensor.device.index or 0 for tensor in model.parameters() if tensor.is_cuda})
    before, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings(), torch.set_grad_enabled(training):
        warnings.simplefilter("ignore")
        torch.manual_seed(SEED)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.clear_autocast_cache()
        try:
            yield
        finally:
            torch.clear_autocast_cache()
            torch.use_deterministic_algorithms(before, warn_only=warn_only)
