"""The state dict of an uncut model of which each rank of a pipeline has a part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from algorun_train.common.errors import UserError

from .placed_model import PlacedModel

StateDict = dict[str, Any]  # torch's own type
Loaded = Any  # what load_state_dict returns: torch has no public type


@dataclass(frozen=True, slots=True)
class Calls:
    """How the caller's users ask for a state dict, for messages."""

    own: str = "state_dict() of the module itself"
    whole: str = "the state dict of the uncut model"
    part: str = "that of this rank's part"


class WholeState:
    """Names are those in the user's module. The whole state is asked for on all ranks of a pipeline."""

    def __init__(self, placed: PlacedModel, calls: Calls) -> None:
        self._placed, self._module, self._calls = placed, placed.module, calls
        self._names = tuple(self._module.state_dict())
        self._complete_at = -1
        """after how many steps the module got the weights of all ranks; -1: never"""
        if placed.ranks.layout.grid.pp > 1:
            placed.ranks.partition.then(self._guard)

    def whole(self) -> StateDict:
        """The whole model's state dict, on the CPU if other ranks have parts of it."""
        staged = self._placed.staged
        if staged is None:
            return dict(self._module.state_dict())
        union = self.union({name: tensor.detach().to("cpu") for name, tensor in staged.state_dict().items()})
        return {name: union[name] for name in self._names}

    def load(self, state: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Loaded:
        """Takes a whole state dict. If the model has no stages yet, the module is loaded as a whole, and cut afterwards."""
        staged = self._placed.staged
        if staged is None:
            return self._module.load_state_dict(state, strict=strict, assign=assign)
        lacking = [name for name in staged.state_dict() if name not in state]
        unknown = [name for name in state if name not in self._names]
        if lacking or (strict and unknown):
            fault = f"without {', '.join(lacking[:3])}" if lacking else f"with {', '.join(unknown[:3])}"
            raise UserError(
                f"load_state_dict: a state dict {fault}; allowed: that of this model; fix: load the right one"
            )
        if not self._placed.steps:  # the first training step may cut the module anew
            self._module.load_state_dict(state, strict=False)
        staged.pipeline.load_state_dict(dict(state))
        return torch.nn.modules.module._IncompatibleKeys([], [])

    def onto_cpu(self) -> None:
        """The module gets the weights of all ranks, on the CPU."""
        state = self.whole()
        self._module.to("cpu")
        self._module.load_state_dict(state)
        self._complete_at = self._placed.steps

    def union(self, mine: StateDict) -> StateDict:
        """The state dicts of all ranks of the pipeline as one. UserError if a rank has ended."""
        ranks = self._placed.ranks
        try:
            rows = ranks.pipeline.gathered(mine, "model.state_dict")
        except RuntimeError as error:  # Gloo's: a connection is closed
            raise UserError(
                f"a whole state dict: another rank of this pipeline has ended or failed while rank {ranks.comm.rank} "
                "asks for it; allowed: on all ranks with the same dp_rank; fix: call it on every rank and save on rank 0, "
                f"or use {self._calls.part}"
            ) from error
        return {name: value for row in rows for name, value in row.items()}

    def _guard(self) -> None:
        """From now on the module itself holds this rank's weights only; whoever saves it should know."""

        def refuse(module: nn.Module, *_: object) -> None:
            if self._complete_at != self._placed.steps:
                raise UserError(
                    f"{self._calls.own}: the module holds the weights of this rank's stages only; "
                    f"fix: {self._calls.whole} on all ranks with dp_rank 0, or {self._calls.part}"
                )

        self._module.register_state_dict_pre_hook(refuse)
