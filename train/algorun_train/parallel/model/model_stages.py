"""A model cut into segments, with the segment at which each of its stages begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .segments import Cutting, SegmentSpec, TensorSpec, modules_around


@dataclass(frozen=True, slots=True)
class ModelStages:
    """What a pipeline is built from. The same on all ranks of the pipeline."""

    cutting: Cutting
    begins: tuple[int, ...]
    """index of the first segment of each stage"""
    entries: tuple[tuple[TensorSpec, ...], ...] = ()
    """what enters each segment, and last the model's output, in the types that the device computes in; left out: as the
    cut has seen them"""

    @property
    def ends(self) -> tuple[int, ...]:
        """Index after the last segment of each stage."""
        return (*self.begins[1:], len(self.cutting.segments))

    def segments(self) -> list[tuple[SegmentSpec, ...]]:
        """The segments of each stage."""
        return [self.cutting.segments[begin:end] for begin, end in zip(self.begins, self.ends, strict=True)]

    def boundaries(self) -> list[Sequence[TensorSpec]]:
        """What enters each stage, and last the model's output."""
        entries = self.entries or (*(segment.entry for segment in self.cutting.segments), self.cutting.output)
        return [*(entries[begin] for begin in self.begins), entries[-1]]

    def stages_of_modules(self) -> dict[str, set[int]]:
        """The stages that each module's units lie in, by the module's name."""
        stages: dict[str, set[int]] = {}
        for index, segments in enumerate(self.segments()):
            for unit in (unit for segment in segments for unit in segment.units):
                for name in ("", *modules_around(unit)):
                    stages.setdefault(name, set()).add(index)
        return stages
