"""A stage whose weights are sharded over the replicas that hold it (FSDP2): units, precision, and when gradients travel."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from algorun_train.parallel.cut.partial_forward import PartialForward
from algorun_train.parallel.shard.layer_units import layer_units
from algorun_train.parallel.shard.sharded_model import ShardMesh, shard


class ShardedStage:
    """Shards `module`, the module of a stage; its parameters are then new ones. Call it on all ranks of `mesh`."""

    def __init__(self, module: nn.Module, mesh: ShardMesh, half: torch.dtype | None, passes: int) -> None:
        """With `half` the stage computes in it. `passes`: backward passes per step that add to every gradient."""
        self._module, self._passes, self._seen = module, passes, 0
        entered = isinstance(module, PartialForward)
        foreign = module.entered_or_left() if isinstance(module, PartialForward) else frozenset()
        names = {id(each): name for name, each in module.named_modules()}
        units = [unit for unit in layer_units(module) if names[id(unit)] not in foreign]
        shard(module, units, mesh, half)
        if entered:
            cast(PartialForward, module).receive_before_hooks(units)

    def backward_begins(self) -> None:
        """Call it before each backward pass. Gradients are reduced in the last one of a step, whichever microbatch it is of:
        until then a rank holds those of its whole stage."""
        self._seen += 1
        is_last = self._seen == self._passes
        if is_last or self._seen == 1:
            cast(FSDPModule, self._module).set_requires_gradient_sync(is_last)
        if is_last:
            self._seen = 0
