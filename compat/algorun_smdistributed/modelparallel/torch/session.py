"""smp.init(), and the one global of this package: the job that it has joined, with the script's model and optimizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from algorun_smdistributed.happening import Happening
from algorun_smdistributed.modelparallel.core.context import Context, enter
from algorun_smdistributed.modelparallel.core.script_model import ScriptModel
from algorun_smdistributed.script_types import Given
from algorun_train.common.errors import UserError
from algorun_train.options import mp_parameters

VARIABLE = "SM_HP_MP_PARAMETERS"


@dataclass(slots=True)
class SmpSession:
    """What smp.init() has found, and what the script has made since."""

    context: Context
    model: ScriptModel | None = None
    optimizer: torch.optim.Optimizer | None = None
    optimizer_is_made: Happening = field(default_factory=Happening)
    alone: dist.ProcessGroup | None = None
    """of this process, once the script asks for it"""

    def when_model_is_there(self, act: Callable[[Given], object]) -> None:
        """Calls `act(model)` now, or when the script's DistributedModel is partitioned."""
        if self.model is not None:
            act(self.context.known["model"])
        else:
            self.context.partition.then(lambda: act(self.context.known["model"]))

    def when_optimizer_is_there(self, act: Callable[[Given], object]) -> None:
        """Calls `act(optimizer)` now, or when the script makes its DistributedOptimizer."""
        self.optimizer_is_made.then(lambda: act(self.optimizer))


_session: SmpSession | None = None


def session() -> SmpSession:
    """The job's session. UserError before smp.init()."""
    if _session is None:
        raise UserError("smdistributed.modelparallel is not initialised; fix: call smp.init() first")
    return _session


def context() -> Context:
    """The job's ranks and layout. UserError before smp.init()."""
    return session().context


def placed_model() -> ScriptModel | None:
    """The script's model; None before smp.init() and before smp.DistributedModel."""
    return _session.model if _session else None


def is_initialized() -> bool:
    """True after smp.init()."""
    return _session is not None


def is_tracing() -> bool:
    """True while the library runs a step function once to see what it does."""
    model = placed_model()
    return model is not None and model.tracing


def init(config: Mapping[str, Given] | None = None) -> None:
    """Joins the ranks and lays them out as `config` and the job's mp_parameters say; where both name a parameter, the
    job's counts.

    A second call does nothing. UserError, equal on all ranks, for parameters that cannot be had.
    """
    global _session
    if _session is None:
        _session = SmpSession(enter(mp_parameters.merged(config or {}, os.environ.get(VARIABLE, ""))))
