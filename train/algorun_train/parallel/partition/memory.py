"""Bytes that a pipeline rank needs: weights with their gradients and moments, activations in flight, receive buffers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from algorun_train.parallel.schedules import Orders, held, held_by_stage


@dataclass(frozen=True, slots=True)
class Memory:
    """What turns the profile of a stage into bytes."""

    moments: int = 2
    """copies of the weights that the optimizer keeps: Adam 2, SGD with momentum 1, without 0"""
    moment_ranks: int = 1
    """data parallel ranks that share one set of moments between them (a sharded optimizer)"""
    preallocated: bool = True
    """torch before 2.15: a stage has buffers for the inputs and the gradients of all microbatches at once"""
    recompute: bool = False
    """a stage keeps what enters it alone, and computes one microbatch's activations again in its backward pass"""

    def states(self, parameter_bytes: int) -> int:
        """Weights, their gradients (of the same precision) and this rank's share of the moments."""
        return 2 * parameter_bytes + math.ceil(self.moments * parameter_bytes / self.moment_ranks)

    def buffers(self, entry_bytes: int, exit_bytes: int, microbatches: int) -> int:
        """Inputs that come from the stage before and gradients that come from the one after."""
        return microbatches * (entry_bytes + exit_bytes) if self.preallocated else 0

    def kept(self, entry_bytes: int) -> int:
        """What a stage keeps of one microbatch's inputs for computing again, beyond its receive buffers."""
        return entry_bytes if self.recompute and not self.preallocated else 0


def moments_of(optimizer: str, momentum: float = 0.0) -> int:
    """Copies of the weights that an optimizer keeps beside weights and gradients."""
    if optimizer in ("adam", "adamw"):
        return 2
    return 1 if momentum else 0


def preallocated(torch_version: str) -> bool:
    """Whether this release of torch makes the receive buffers of all microbatches beforehand."""
    major, minor = torch_version.split(".")[:2]
    return (int(major), int(minor)) < (2, 15)


@dataclass(frozen=True, slots=True)
class StageBytes:
    """One stage's bytes by what they are for."""

    states: int
    buffers: int
    saved: int
    """what is kept of one microbatch from the forward to the backward pass: its activations, or only what enters"""
    again: int = 0
    """activations of the one microbatch that is being computed again"""


def stage_bytes(stages: Sequence[StageBytes], orders: Orders) -> tuple[int, ...]:
    """Bytes of each stage at its own peak."""
    in_flight = held_by_stage(orders)
    return tuple(s.states + s.buffers + n * s.saved + s.again for s, n in zip(stages, in_flight, strict=True))


def rank_bytes(stages: Sequence[StageBytes], orders: Orders) -> tuple[int, ...]:
    """Bytes of each rank at its peak; the stages of a rank do not have theirs at the same time."""
    peaks = held(orders, [s.saved for s in stages])
    owned = [{action.stage for action in order} for order in orders]
    fixed = [sum(stages[s].states + stages[s].buffers for s in own) for own in owned]
    again = [max(stages[s].again for s in own) for own in owned]  # one backward pass at a time
    return tuple(map(sum, zip(peaks, fixed, again, strict=True)))
