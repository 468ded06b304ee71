"""smp.optimizers: apex's optimizers as the library has them, by name; they cannot be made."""

from __future__ import annotations

from torch.optim import Optimizer

from smdistributed.modelparallel.torch.refused import refuse, stand_in

__all__ = ["FusedLamb", "FusedNovoGrad"]

FusedLamb = stand_in("optimizers.FusedLamb", Optimizer)
FusedNovoGrad = stand_in("optimizers.FusedNovoGrad", Optimizer)


def __getattr__(name: str) -> object:
    refuse(name, "optimizers")
