"""smp.nn: the library's tensor parallel modules, by name. They can be registered (`smp.tp_register`), but not made."""

from __future__ import annotations

from torch import nn

from smdistributed.modelparallel.torch.refused import NN, refuse, stand_in

from . import huggingface

__all__ = ["huggingface", *NN]

DistributedModule = stand_in("nn.DistributedModule", nn.Module)
for _name in NN:
    if _name != "DistributedModule":
        _base = DistributedModule if _name.startswith("Distributed") else nn.Module
        globals()[_name] = stand_in(f"nn.{_name}", _base)


def __getattr__(name: str) -> object:
    refuse(name, "nn")
