"""A model that is not cut: one segment, one stage."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from algorun_train.parallel.segments import SegmentSpec, TensorSpec


class UncutModel:
    """A `Cutting` of one segment. `output` is what the model returns for the example."""

    def __init__(self, model: nn.Module, example: torch.Tensor, output: TensorSpec) -> None:
        names = tuple(name for name, _ in model.named_parameters())
        self.segments: tuple[SegmentSpec, ...] = (SegmentSpec("model", ("model",), names, (TensorSpec.of(example),)),)
        self.output: tuple[TensorSpec, ...] = (output,)
        self.example: tuple[torch.Tensor, ...] = (example,)
        self._model = model

    def stage(self, begin: int, end: int) -> nn.Module:
        """The model itself: `begin` is 0 and `end` 1."""
        if (begin, end) != (0, 1):
            raise ValueError(f"stage({begin}, {end}) of 1 segment")
        return self._model


def output_of(model: nn.Module, example: Any) -> TensorSpec:  # Any: the user model's own arguments
    """The model's output for `example`, without its data.

    Afterwards buffers are as before: one rank calls this, and all ranks go on with equal statistics of BatchNorm.
    """
    before = [(module, dict(module._buffers)) for module in model.modules()]
    copies = [{name: t.detach().clone() for name, t in own.items() if t is not None} for _, own in before]
    with torch.no_grad():
        spec = TensorSpec.of(model(example))
        for (module, own), values in zip(before, copies, strict=True):
            module._buffers.update(own)
            for name, tensor in own.items():
                if tensor is not None:
                    tensor.copy_(values[name])
    return spec
