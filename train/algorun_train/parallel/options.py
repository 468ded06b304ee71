"""What a caller decides about stages: small, frozen, without torch. Callers convert their own options into these."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How the stages of one pipeline run."""

    microbatches: int
    """per step, always the same number"""
    schedule: str = "1f1b"
    """a name of `schedules.SCHEDULES`"""
    precision: str = "fp32"
    """what autocast computes in, a name of `precision.AUTOCAST`; fp32: no autocast"""
    recompute: bool = False
    """compute activations again in the backward pass instead of keeping them"""
    mean: bool = False
    """gradients are the mean over the replicas, so that those of several steps may add up; else their sum"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOptions:
    """How a model is cut and partitioned."""

    optimize: str = "speed"
    """"speed": the shortest step; "memory": the smallest largest rank"""
    limit_bytes: int | None = None
    """device memory that a rank may need; None: no limit"""
    moments: int = 2
    """copies of the weights that the optimizer keeps (`partition.memory.moments_of`)"""
    precision: str = "fp32"
    """as in `RunOptions`"""
    recompute: bool = False
    """as in `RunOptions`"""
    file: Path | None = None
    """a partition file to use; written where it does not exist. None: the default file, which is written anew"""
    missing_file_error: str | None = None
    """what a UserError says if `file` does not exist; None: then a new partition is made"""
    default_stage: int | None = None
    """the stage of units that `file` does not name; None: the file has to name all units"""
    always_profile: bool = False
    """cut and profile although there is one stage, which needs neither"""
    explain: bool = False
    """print schedule and partition as tables"""
    by_layers: bool = False
    """cut only between the layers of the model's longest list of layers"""
    fewer_stages: str = "fewer stages"
    """how the caller asks for fewer stages, for messages"""
