"""What a call of the model means while an @smp.step function runs: it depends on the rank, and on what is wanted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch

from algorun_smdistributed.script_types import Given, Result
from algorun_smdistributed.signatures.model_call import ModelCall
from algorun_train.common.errors import UserError
from algorun_train.parallel.model import trees
from algorun_train.ranks import tensor_memory

SEVERAL = (
    "an @smp.step function calls the model more than once per microbatch; allowed: once, with more than one partition; "
    'fix: put both calls into one module\'s forward, or "partitions": 1'
)


class Answer(Protocol):
    """Stands for the model while one microbatch's function runs."""

    def call(self, args: tuple[Given, ...], kwargs: dict[str, Given]) -> Result: ...

    def backward(self, loss: torch.Tensor) -> None: ...


class Reached(BaseException):
    """Leaves a function at its model call. No Exception: the user's `except Exception` is not meant."""


@dataclass(slots=True)
class UpToModel:
    """On the rank with the first stage: how the function calls the model."""

    device: str
    found: ModelCall | None = None

    def call(self, args: tuple[Given, ...], kwargs: dict[str, Given]) -> Result:
        autocast = torch.get_autocast_dtype(self.device) if torch.is_autocast_enabled(self.device) else None
        args, kwargs = _as_it_is((args, kwargs))
        self.found = ModelCall(args, kwargs, autocast)
        raise Reached

    def backward(self, loss: torch.Tensor) -> None:
        raise UserError(
            "model.backward before the model was called; fix: loss = ..model(..).., then model.backward(loss)"
        )


def _as_it_is(arguments: Given) -> Result:
    """Copies of the tensors that have been changed in place: the function may change them again in the next microbatch."""
    tensors = trees.leaves(arguments)
    # Nothing counts the changes of tensors of inference mode.
    changed = [tensor.is_inference() or tensor._version > 0 for tensor in tensors]
    copies = iter(tensor_memory.copies(tensors, changed))
    return trees.mapped(arguments, lambda _: next(copies))


@dataclass(slots=True)
class WithOutput:
    """On the rank with the last stage: the function goes on with the pipeline's output, and its loss is kept."""

    output: Given
    calls: int = 0
    loss: torch.Tensor | None = None

    def call(self, args: tuple[Given, ...], kwargs: dict[str, Given]) -> Result:
        self.calls += 1
        if self.calls > 1:
            raise UserError(SEVERAL)
        return self.output

    def backward(self, loss: torch.Tensor) -> None:
        if self.loss is not None:
            raise UserError(
                "an @smp.step function calls model.backward more than once; allowed: once; fix: add the losses up before"
            )
        self.loss = loss


@dataclass(slots=True)
class Whole:
    """With one partition: the function runs as it stands, on the whole model."""

    module: torch.nn.Module
    scale: float
    counted: Callable[[], AbstractContextManager[None]]
    """held while a pass runs that the step's end waits for"""
    backwards: int = 0

    def call(self, args: tuple[Given, ...], kwargs: dict[str, Given]) -> Result:
        return self.module(*args, **kwargs)

    def backward(self, loss: torch.Tensor) -> None:
        self.backwards += 1
        with self.counted():
            (loss * self.scale).backward()


def scalar(tensors: Given, grad_tensors: Given = None) -> torch.Tensor:
    """The one number whose gradient torch.autograd.backward(tensors, grad_tensors) would compute."""
    many = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    given = [grad_tensors] if grad_tensors is None or isinstance(grad_tensors, torch.Tensor) else list(grad_tensors)
    given = given * len(many) if given == [None] else given
    if len(given) != len(many):
        raise UserError(f"model.backward: {len(given)} gradients for {len(many)} tensors; fix: one for each, or none")
    parts: list[torch.Tensor] = []
    for tensor, gradient in zip(many, given, strict=True):
        if gradient is None and tensor.numel() != 1:
            raise UserError(
                f"model.backward: a tensor of shape {list(tensor.shape)} without a gradient; allowed: a single number, or "
                "model.backward(tensors, gradients); fix: reduce the loss to its mean or sum"
            )
        parts.append(tensor.sum() if gradient is None else (tensor * gradient).sum())
    if not parts:
        raise UserError("model.backward: no tensor; fix: give it the loss")
    return sum(parts[1:], parts[0])
