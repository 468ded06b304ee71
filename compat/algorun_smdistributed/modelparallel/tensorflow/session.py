"""smp.init(), and the one global of this package: the job that it has joined, with the script's model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from algorun_smdistributed.collectives.script_ranks import use_replicas
from algorun_smdistributed.modelparallel.graph.drawn_schedule import DrawnSchedule
from algorun_smdistributed.modelparallel.graph.planned_step import KerasJob
from algorun_smdistributed.modelparallel.graph.saved_partition import SavedPartition
from algorun_smdistributed.ranks import joining
from algorun_smdistributed.script_types import Given
from algorun_train.common.errors import UserError
from algorun_train.options import folders, mp_parameters
from algorun_train.options.job_options import PipelineJobOptions
from algorun_train.options.mp_sharding import NO_SHARDING
from algorun_train.options.pipeline_layout import lay_out
from algorun_train.parallel.partition.partition_file import PARTITION

VARIABLE = "SM_HP_MP_PARAMETERS"
HOROVOD = "horovod"

_session: KerasJob | None = None


def job() -> KerasJob:
    """The joined job. UserError before smp.init()."""
    if _session is None:
        raise UserError("smdistributed.modelparallel is not initialised; fix: call smp.init() first")
    return _session


def is_initialized() -> bool:
    """True after smp.init()."""
    return _session is not None


def init(config: Mapping[str, Given] | None = None) -> None:
    """Joins the ranks of the job, and lays them out as `config` and the job's mp_parameters say; where both name
    a parameter, the job's counts.

    A second call does nothing. UserError, equal on all ranks, for parameters that cannot be had.
    """
    global _session
    if _session is not None:
        return
    text = mp_parameters.merged(config or {}, os.environ.get(VARIABLE, ""))
    given = json.loads(text)
    horovod = given.pop(HOROVOD, False)
    if not isinstance(horovod, bool):
        raise UserError(f"mp_parameters: {HOROVOD} = {horovod!r}; allowed: true, false; fix: give one of them")
    count = int(mp_parameters.parse(json.dumps(given)).options["microbatches"])
    wanted = PipelineJobOptions(mp_parameters=json.dumps(given), batch_size=count, microbatches=count)
    options, mp = mp_parameters.apply(wanted, shards=True)
    for name, asked, fix in (
        ("bf16", options.precision != "fp32", "tf.keras.mixed_precision"),
        ("fp16", bool(given.get("fp16")), "tf.keras.mixed_precision"),
        ("sharded_data_parallel_degree", mp.sharding != NO_SHARDING, "smdistributed.modelparallel.torch"),
    ):
        if asked:
            raise UserError(
                f"mp_parameters: {name} = {given.get(name)!r} with TensorFlow; allowed: not given; fix: {fix}"
            )
    world = joining.join("smp.init")
    layout = lay_out(options, replace(mp, ddp=mp.ddp or horovod), world.size)
    replica, stage = layout.grid.place(world.rank)
    pipeline = world.part(replica, stage, "one pipeline")
    replicas = world.part(stage, replica, "one partition in all replicas")
    default = None if mp.auto_partition else mp.default_partition or 0
    file = folders.output_folder(os.environ, Path.is_dir) / PARTITION
    saved = SavedPartition(file, [])
    drawn = DrawnSchedule(pipeline, layout.shape, saved) if replica == 0 else None
    _session = here = KerasJob(
        world, pipeline, replicas, layout, options.optimize, saved, drawn, default_partition=default
    )
    # A script's own messages, by Horovod's names: they must not meet those of steps.
    use_replicas(
        world.part(stage, replica, "one partition in all replicas"),
        lambda variable: here.placement is None or here.placement.is_own(variable),
    )
