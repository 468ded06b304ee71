"""What a model is cut into: segments, with tensors that cross the boundary between neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor without its data."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        return cls(tuple(tensor.shape), tensor.dtype)

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """The smallest piece of a model that a stage can begin and end at."""

    name: str
    """of its first unit"""
    units: tuple[str, ...]
    """modules called in it, in execution order"""
    parameters: tuple[str, ...]
    """names in the whole model; a shared weight has its first name, in each segment that uses it"""
    entry: tuple[TensorSpec, ...]
    """the tensors that enter it; for the first segment: the tensors among the model's arguments"""


class Cutting(Protocol):
    """A model cut into segments, from which stages are built."""

    segments: tuple[SegmentSpec, ...]
    """in execution order"""
    output: tuple[TensorSpec, ...]
    """the tensors in the model's output"""
    example: tuple[torch.Tensor, ...]
    """the tensors among the model's arguments, of one microbatch"""

    def stage(self, begin: int, end: int, change: Callable[[nn.Module], None] | None = None) -> nn.Module:
        """Segments begin .. end - 1 as a module.

        Called with the entry tensors of segment `begin`, it returns the entry tensors of segment `end` (a tensor if there
        is one, else a tuple), or the model's own output if `end` is the number of segments. Its parameters, buffers and
        keys of the state dict have the model's names. Its parameters are the model's own objects, also if several stages
        use one. Every tensor between two stages is a floating-point tensor and gets a gradient: zeros if none reaches it.
        `change(model)` is called first: it may give the modules of the stage, which lie in a copy of the whole model, other
        parameters and forwards. Modules of other stages have no parameters there.
        """
        ...


def modules_around(unit: str) -> list[str]:
    """The names of the modules around a unit, the outermost first, and last its own."""
    words = unit.split(".")
    return [".".join(words[: length + 1]) for length in range(len(words))]
