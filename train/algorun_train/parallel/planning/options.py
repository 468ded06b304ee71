"""How the caller wants a model to be cut and partitioned. Without torch: callers convert their own options into these."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
    """as in `run.options.RunOptions`"""
    recompute: bool = False
    """as in `run.options.RunOptions`"""
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
