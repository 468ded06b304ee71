"""smp.optimizers: apex's optimizers as the library has them. FusedNovoGrad can be named, but not made."""

from __future__ import annotations

from torch.optim import Optimizer

from algorun_smdistributed.modelparallel.core.refused import refuse, stand_in
from algorun_smdistributed.optimizers.lamb import FusedLAMB

__all__ = ["FusedLAMB", "FusedLamb", "FusedNovoGrad"]

FusedLamb = FusedLAMB  # the documentation's spelling; AWS's example scripts have apex's
FusedNovoGrad = stand_in("optimizers.FusedNovoGrad", Optimizer)


def __getattr__(name: str) -> object:
    refuse(name, "optimizers")
