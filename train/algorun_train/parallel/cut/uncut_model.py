"""A model that is not cut: one segment, one stage."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from algorun_train.parallel.model.segments import SegmentSpec, TensorSpec
from algorun_train.parallel.model.trees import arguments, leaves, mapped

from .meta import on_meta
from .partial_forward import PartialForward, StagePlan


class UncutModel:
    """A `Cutting` of one segment. `example` is as in `cut`; `output` are the tensors that the model returns for it."""

    def __init__(self, model: nn.Module, example: object, output: tuple[TensorSpec, ...]) -> None:
        names = tuple(name for name, _ in model.named_parameters())
        self._model, self._arguments = model, arguments(example)
        self.example: tuple[torch.Tensor, ...] = tuple(leaves(self._arguments))
        entry = tuple(TensorSpec.of(tensor) for tensor in self.example)
        self.segments: tuple[SegmentSpec, ...] = (SegmentSpec("model", ("model",), names, entry),)
        self.output = output

    def stage(self, begin: int, end: int, change: Callable[[nn.Module], None] | None = None) -> nn.Module:
        """The model as a module that takes the tensors of its arguments: `begin` is 0 and `end` 1. `change` changes it itself."""
        if (begin, end) != (0, 1):
            raise ValueError(f"stage({begin}, {end}) of 1 segment")
        if change:
            change(self._model)
        args, kwargs = self._arguments
        if not kwargs and all(isinstance(arg, torch.Tensor) for arg in args):
            return self._model
        nesting = mapped(self._arguments, on_meta)
        return PartialForward(self._model, StagePlan(None, None, (), (), (), nesting))


def output_of(model: nn.Module, example: object) -> tuple[TensorSpec, ...]:
    """The tensors that the model returns for `example`, without their data.

    Afterwards buffers are as before: one rank calls this, and all ranks go on with equal statistics of BatchNorm.
    """
    before = [(module, dict(module._buffers)) for module in model.modules()]
    copies = [{name: t.detach().clone() for name, t in own.items() if t is not None} for _, own in before]
    args, kwargs = arguments(example)
    with torch.no_grad():
        specs = tuple(TensorSpec.of(tensor) for tensor in leaves(model(*args, **kwargs)))
        for (module, own), values in zip(before, copies, strict=True):
            module._buffers.update(own)
            for name, tensor in own.items():
                if tensor is not None:
                    tensor.copy_(values[name])
    return specs
