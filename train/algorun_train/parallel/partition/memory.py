"""Bytes that a pipeline rank needs: weights, gradients, optimizer moments, activations in flight, receive buffers.

Not counted: fragments of the device's allocator, and the memory of libraries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from algorun_train.parallel.schedules import Orders, in_flight_by_stage, peak_sizes


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Turns the profile of a stage into bytes."""

    moments: int = 2
    """copies of the weights that the optimizer keeps, see `moments_of`"""
    preallocated: bool = True
    """a stage has receive buffers for all microbatches at once, see `preallocated`"""
    recompute: bool = False
    """a stage keeps only what enters it, and computes the activations of one microbatch at a time again"""
    shards: int = 1
    """pipelines that share the weights of a stage"""
    held: float = 1.0
    """the share of the weights that each rank of a tensor group has"""

    def states(self, parameter_bytes: int) -> int:
        """Weights, their gradients (of the same type) and the optimizer's moments.

        Of weights and moments a rank has its share. Gradients are whole until the last microbatch.
        """
        parameter_bytes = round(parameter_bytes * self.held)
        return parameter_bytes + -(-(1 + self.moments) * parameter_bytes // self.shards)

    def buffers(self, entry_bytes: int, exit_bytes: int, microbatches: int) -> int:
        """Receive buffers: inputs from the stage before, gradients from the stage after."""
        return microbatches * (entry_bytes + exit_bytes) if self.preallocated else 0

    def kept(self, entry_bytes: int) -> int:
        """Bytes of one microbatch's inputs that recomputation keeps beside the receive buffers."""
        return entry_bytes if self.recompute and not self.preallocated else 0


def moments_of(optimizer: str, momentum: float = 0.0) -> int:
    """Copies of the weights that an optimizer keeps: Adam 2, SGD with momentum 1, SGD without momentum 0."""
    if optimizer in ("adam", "adamw"):
        return 2
    return 1 if momentum else 0


def preallocated(torch_version: str) -> bool:
    """Whether this release of torch allocates the receive buffers of all microbatches at once: all before 2.15 do."""
    major, minor = torch_version.split(".")[:2]
    return (int(major), int(minor)) < (2, 15)


@dataclass(frozen=True, slots=True)
class StageBytes:
    """The bytes of one stage by purpose."""

    states: int
    """weights, gradients, moments"""
    buffers: int
    """receive buffers"""
    saved: int
    """kept of one microbatch from its forward to its backward pass: activations, or with recomputation its inputs"""
    recomputed: int = 0
    """activations of the one microbatch that is computed again"""


def stage_bytes(stages: Sequence[StageBytes], orders: Orders) -> tuple[int, ...]:
    """Bytes of each stage at its own peak."""
    in_flight = in_flight_by_stage(orders)
    return tuple(s.states + s.buffers + n * s.saved + s.recomputed for s, n in zip(stages, in_flight, strict=True))


def rank_bytes(stages: Sequence[StageBytes], orders: Orders) -> tuple[int, ...]:
    """Bytes of each rank at its peak. It is below the sum over its stages: they do not reach their peaks together."""
    peaks = peak_sizes(orders, [s.saved for s in stages])
    stages_of_rank = [{action.stage for action in order} for order in orders]
    fixed = [sum(stages[s].states + stages[s].buffers for s in own) for own in stages_of_rank]
    recomputed = [max(stages[s].recomputed for s in own) for own in stages_of_rank]  # one backward pass at a time
    return tuple(map(sum, zip(peaks, fixed, recomputed, strict=True)))
