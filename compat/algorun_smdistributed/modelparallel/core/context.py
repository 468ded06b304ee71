"""The job as this rank sees it after smp.init(): its ranks, its layout, and ways to the other ranks."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from algorun_smdistributed.ranks.meeting import RankMeeting, own_meeting
from algorun_smdistributed.signatures.model_ranks import ModelRanks
from algorun_train.options import mp_parameters
from algorun_train.options.job_options import PipelineJobOptions
from algorun_train.options.mp_parameters import MpParameters
from algorun_train.options.pipeline_layout import lay_out
from algorun_train.parallel.run import process_groups
from algorun_train.parallel.shard.sharded_model import ShardMesh, make_mesh
from algorun_train.ranks import join
from algorun_train.ranks.communicator import LONG_WORK
from algorun_train.ranks.object_channel import ObjectChannel
from algorun_train.ranks.packing import Packing, cannot_be_sent
from algorun_train.ranks.world import read_world

FIX = (
    "allowed: the same on all of them, @smp.step functions on all ranks of a pipeline, also for evaluation; "
    "fix: call it on every rank, not on rank 0 alone"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(ModelRanks):
    """The ranks of the job as the script's model sees them, and what the job asks for. Made once, on all ranks."""

    options: PipelineJobOptions
    mp: MpParameters
    messages: ObjectChannel
    """between all ranks: what scripts send"""
    known: dict[str, object]
    """what every rank has, and step functions may get: "model" and "optimizer" """
    mesh: ShardMesh | None
    """replicas x shards, with sharded data parallelism"""
    holders: RankMeeting
    """of the ranks that hold one model together: those of a pipeline, or of the shares of a replica"""

    @property
    def number(self) -> int:
        """This rank's place among the holders."""
        return self.mesh.index if self.mesh else self.axes.pp_rank

    @property
    def writes(self) -> bool:
        """Whether this rank is one of the holders that write checkpoints."""
        return self.mesh.is_first_replica if self.mesh else self.axes.dp_rank == 0


def enter(parameters: str) -> Context:
    """Joins the ranks and lays them out as `parameters`, a job's mp_parameters, say. On all ranks.

    UserError, equal on all ranks, for parameters that cannot be had.
    """
    count = int(mp_parameters.parse(parameters).options["microbatches"])
    wanted = PipelineJobOptions(mp_parameters=parameters, batch_size=count, microbatches=count)
    options, mp = mp_parameters.apply(wanted, shards=True)
    world = read_world(os.environ)
    layout = lay_out(options, mp, world.world_size, torch.__version__)
    shards = mp.sharding.shards(world.world_size)
    comm = join.enter(world)
    grid, known = layout.grid, dict[str, object]()
    axes = process_groups.join(grid, comm.rank, comm.device)
    everybody = None
    if comm.size > 1:  # a group of its own, so that scripts' messages meet no others
        everybody = dist.new_group(list(range(comm.size)), backend="gloo", timeout=join.COLLECTIVE_TIMEOUT)
    pipeline = own_meeting(comm.rank, grid.pipelines, FIX, LONG_WORK if grid.pp > 1 else None)
    mesh, holders = None, pipeline
    if shards > 1:
        mesh = make_mesh(comm.device, comm.rank, comm.size, shards)
        groups = [range(first, first + shards) for first in range(0, comm.size, shards)]
        holders = own_meeting(comm.rank, groups, FIX)
    return Context(
        comm=comm,
        layout=layout,
        axes=axes,
        pipeline=pipeline,
        replicas=own_meeting(comm.rank, grid.replicas, FIX),
        steps=ObjectChannel(axes.pp_group, Packing(axes.device, _no_argument, known, direct=True)),
        options=replace(options, microbatches=count),
        mp=mp,
        messages=ObjectChannel(everybody, Packing(comm.device, cannot_be_sent("smdistributed"))),
        known=known,
        mesh=mesh,
        holders=holders,
    )


def _no_argument(value: object, error: Exception) -> str:
    return (
        f"an argument or result of an @smp.step function cannot be sent to another rank ({error}); allowed: what "
        "pickle takes; fix: use a global variable, or make the object inside the function"
    )
