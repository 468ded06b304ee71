"""How the caller wants the stages of a pipeline to run. Without torch: callers convert their own options into these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How the stages of one pipeline run."""

    microbatches: int
    """per step, always the same number"""
    schedule: str = "1f1b"
    """a name of `schedules.SCHEDULES`"""
    precision: str = "fp32"
    """what autocast computes in, a name of `model.precision.AUTOCAST`; fp32: no autocast"""
    recompute: bool = False
    """compute activations again in the backward pass instead of keeping them"""
    mean: bool = False
    """gradients are the mean over the replicas, so that those of several steps may add up; else their sum"""
