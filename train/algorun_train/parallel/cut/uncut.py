"""A model that stays whole: one segment, one stage."""

import torch
from torch import nn

from algorun_train.parallel.segments import SegmentSpec, TensorSpec


class Whole:
    """A `Cutting` of one segment. `output` is what the model returns for the example."""

    def __init__(self, model: nn.Module, example: torch.Tensor, output: TensorSpec) -> None:
        names = tuple(name for name, _ in model.named_parameters())
        self.segments = (SegmentSpec("model", ("model",), names, (TensorSpec.of(example),)),)
        self.output = (output,)
        self.example = (example,)
        self._model = model

    def stage(self, begin: int, end: int) -> nn.Module:
        if (begin, end) != (0, 1):
            raise ValueError(f"stage({begin}, {end}) of 1 segment")
        return self._model
