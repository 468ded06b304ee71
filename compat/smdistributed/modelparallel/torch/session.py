"""The job as this rank sees it after smp.init(): ranks, layout, and the one model and optimizer of the script."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from algorun_train.errors import UserError
from algorun_train.options import mp_parameters
from algorun_train.options.job_options import PipelineJobOptions
from algorun_train.options.mp_parameters import MpParameters
from algorun_train.options.pipeline_layout import lay_out
from algorun_train.parallel.layout import Layout
from algorun_train.parallel.run import process_groups
from algorun_train.parallel.run.process_groups import Axes
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import enter
from algorun_train.ranks.world import read_world
from smdistributed.script_types import Given

from . import meeting

if TYPE_CHECKING:
    from .model import DistributedModel
    from .optimizer import DistributedOptimizer
    from .staged_part import StagedPart

VARIABLE = "SM_HP_MP_PARAMETERS"


@dataclass(slots=True)
class Session:
    """What smp.init() has found, and what the script has made since."""

    comm: Communicator
    config: PipelineJobOptions
    wishes: MpParameters
    layout: Layout
    axes: Axes
    model: DistributedModel | None = None
    optimizer: DistributedOptimizer | None = None
    partitioned: bool = False
    tracing: bool = False
    _waiting: list[Callable[[], None]] = field(default_factory=list)

    @property
    def staged(self) -> StagedPart | None:
        """This rank's stages, once a model is cut into several partitions."""
        return self.model.staged if self.model else None

    def on_partition(self, callback: Callable[[], None]) -> None:
        """Calls it once every rank has its part of the model: now, where that is so."""
        if self.partitioned:
            callback()
        else:
            self._waiting.append(callback)

    def partition_is_done(self) -> None:
        self.partitioned = True
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()


_session: Session | None = None


def session() -> Session:
    """The job's session. UserError before smp.init()."""
    if _session is None:
        raise UserError("smdistributed.modelparallel is not initialised; fix: call smp.init() first")
    return _session


def is_initialized() -> bool:
    """True after smp.init()."""
    return _session is not None


def is_tracing() -> bool:
    """True while the library runs a step function once to see what it does."""
    return _session is not None and _session.tracing


def init(config: Mapping[str, Given] | None = None) -> None:
    """Joins the ranks and lays them out as `config` says, else as the job's mp_parameters do.

    A second call does nothing. UserError, equal on all ranks, for parameters that cannot be had.
    """
    global _session
    if _session is not None:
        return
    text = json.dumps(dict(config)) if config is not None else os.environ.get(VARIABLE) or "{}"
    count = int(mp_parameters.parse(text).options["microbatches"])
    wanted = PipelineJobOptions(mp_parameters=text, batch_size=count, microbatches=count)
    options, wishes = mp_parameters.apply(wanted)
    world = read_world(os.environ)
    layout = lay_out(options, wishes, world.world_size, torch.__version__)
    comm = enter(world)
    axes = process_groups.join(layout.grid, comm.rank, comm.device)
    meeting.connect(comm, layout.grid)
    _session = Session(comm, replace(options, microbatches=count), wishes, layout, axes)
