"""Converts the options of a job into those of the library `algorun_train.parallel`, which does not know jobs."""

from __future__ import annotations

from algorun_train.parallel.layout.layout import Layout
from algorun_train.parallel.partition.memory import moments_of
from algorun_train.parallel.planning.options import PartitionOptions
from algorun_train.parallel.run.options import RunOptions

from .job_options import PipelineJobOptions
from .mp_parameters import MpParameters

MIB = 2**20


def partition_options(config: PipelineJobOptions, mp: MpParameters, by_layers: bool = False) -> PartitionOptions:
    """How the job's model is cut and partitioned. `by_layers`: cut only between the layers of its longest list."""
    return PartitionOptions(
        optimize=config.optimize,
        limit_bytes=None if config.memory_limit_mb is None else round(config.memory_limit_mb * MIB),
        moments=moments_of(config.optimizer, config.momentum),
        precision=config.precision,
        recompute=config.recompute,
        file=config.partition,
        missing_file_error=None
        if mp.auto_partition
        else (
            "mp_parameters: auto_partition = false without a partition; allowed: with one; "
            "fix: --partition FILE, made by a run with --profile-only"
        ),
        default_stage=mp.default_partition,
        always_profile=config.profile_only,
        explain=config.explain or config.profile_only,
        by_layers=by_layers,
        fewer_stages=mp.fewer_stages,
    )


def run_options(config: PipelineJobOptions, layout: Layout, mean: bool = False) -> RunOptions:
    """How the job's stages run. `mean`: gradients are the mean over the replicas instead of their sum."""
    return RunOptions(
        microbatches=layout.microbatches,
        schedule=layout.schedule,
        precision=config.precision,
        recompute=config.recompute,
        mean=mean,
    )
