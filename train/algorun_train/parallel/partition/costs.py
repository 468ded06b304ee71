"""What a segment costs, measured, and what a partition costs, predicted."""

from __future__ import annotations

from dataclasses import dataclass

Begins = tuple[int, ...]
"""index of the first segment of each stage"""


@dataclass(frozen=True, slots=True)
class SegmentProfile:
    """What one microbatch costs in a segment, measured on the device. These are the fields of the partition file."""

    name: str
    units: tuple[str, ...]
    forward_s: float
    backward_s: float
    saved_bytes: int
    """kept from the forward to the backward pass, without weights and without what the segment before has counted"""
    parameter_bytes: int
    boundary_bytes: int
    """the tensors that enter the segment, if it is the first of a stage"""
    shared: tuple[tuple[str, int], ...] = ()
    """names and bytes of the shared weights among its parameters; `parameter_bytes` contains these bytes"""


@dataclass(frozen=True, slots=True)
class Partition:
    """Where stages begin, and the predicted costs. Seconds are per microbatch, except `step_s`: a whole step.

    All tuples have one item per stage, except `rank_bytes`: one per pipeline rank. These are the fields of the partition
    file.
    """

    begins: Begins
    """index of each stage's first segment"""
    ranks: tuple[int, ...]
    """the pipeline rank of each stage"""
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    parameter_bytes: tuple[int, ...]
    in_flight: tuple[int, ...]
    """the largest number of microbatches in flight through each stage"""
    stage_bytes: tuple[int, ...]
    rank_bytes: tuple[int, ...]
    """at most the sum over a rank's stages, which do not reach their peaks together"""
    step_s: float
    bubble: float
    """share of the step in which ranks wait, over all ranks"""
