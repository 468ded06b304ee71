"""smp.nn: the library's modules. The tensor parallel ones can be registered (`smp.tp_register`), but not made."""

from __future__ import annotations

from torch import nn

from algorun_smdistributed.modelparallel.core.refused import NN, refuse, stand_in

from . import huggingface
from .layer_norm import FusedLayerNorm

__all__ = ["FusedLayerNorm", "huggingface", *NN]

DistributedModule = stand_in("nn.DistributedModule", nn.Module)
for _name in NN:
    if _name != "DistributedModule":
        _base = DistributedModule if _name.startswith("Distributed") else nn.Module
        globals()[_name] = stand_in(f"nn.{_name}", _base)


def __getattr__(name: str) -> object:
    refuse(name, "nn")
