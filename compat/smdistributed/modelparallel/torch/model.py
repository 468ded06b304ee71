"""A model of linear layers, one after the other, of which a rank keeps some (placeholder)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .messages import CPU, gathered
from .refused import Refusing
from .session import session
from .tensor_parallel import NothingDistributed


class DistributedModel(NothingDistributed, Refusing, nn.Module):
    def __init__(self, module: nn.Sequential) -> None:
        super().__init__()
        self.module = module
        now = session()
        self._ranks = now.layout.grid.pp
        now.model = self
        self._waiting: dict[str, Any] | None = None
        if self._ranks == 1:
            now.partition_is_done()

    @property
    def partitioned(self) -> bool:
        return session().partitioned

    def partition(self) -> None:
        """What the first step does."""
        now = session()
        if not now.partitioned:
            now.partition_is_done()

    def local_named_parameters(self):
        stage = session().axes.pp_rank
        for name, parameter in self.module.named_parameters():
            if int(name.split(".")[0]) * self._ranks // len(self.module) == stage:
                yield name, parameter

    def local_parameters(self):
        return (parameter for _, parameter in self.local_named_parameters())

    def local_state_dict(self) -> dict[str, Any]:
        return {name: p.detach() for name, p in self.local_named_parameters()} | {"_smp_is_partial": True}

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for part in gathered(self.local_state_dict(), session().axes.pp_group, CPU):
            found |= part
        del found["_smp_is_partial"]
        return found

    def load_state_dict(self, state: dict[str, Any], strict: bool = True) -> None:
        if state.get("_smp_is_partial"):
            whole: dict[str, Any] = {}
            for part in gathered(state, session().axes.pp_group, CPU):
                whole |= part
            del whole["_smp_is_partial"]
            state = whole
        self.module.load_state_dict(state, strict=strict)

    def forward(self, *args: Any) -> Any:
        return self.module(*args)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def refresh(self) -> None:
        """The other ranks' weights, since here every rank computes all."""
        self.module.load_state_dict(self.state_dict())

    def after_step(self, count: int) -> None:
        """Only this rank's parameters have gradients, the mean over microbatches."""
        mine = {id(p) for p in self.local_parameters()}
        for parameter in self.module.parameters():
            if id(parameter) not in mine:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad /= count
