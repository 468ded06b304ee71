"""The state of an optimizer over the parameters of an uncut model, of which each rank of a pipeline has a part.

torch numbers an optimizer's parameters by their place in its groups. Built over all parameters of the model, an optimizer
has the same numbers on all ranks, and on each rank only the state of the parameters that are trained there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from algorun_smdistributed.replicas.part import Part
from algorun_train.common.errors import UserError

from .staged_model import StagedModel

StateDict = dict[str, Any]  # torch's own type


@dataclass(frozen=True, slots=True)
class StatePart:
    """What one rank has of it."""

    state: StateDict
    """as torch's own state_dict()"""
    copies: Sequence[int] = ()
    """numbers of parameters whose state another rank has as well"""
    is_of_one_rank: bool = False
    """none of the optimizer's parameters belongs to another rank, so its numbers mean nothing there"""

    def without_copies(self) -> StatePart:
        """The same without the state of parameters that another rank has as well."""
        own = {number: each for number, each in self.state["state"].items() if number not in self.copies}
        return replace(self, state=self.state | {"state": own}, copies=())


def part_of(optimizer: torch.optim.Optimizer, state: StateDict, part: Part | None) -> StatePart:
    """This rank's, whose state is `state`; `part` is its part of the model, None as long as that is not known."""
    mine, copies = numbers_of(optimizer, part), list[int]()
    given = _parameters(optimizer)
    if isinstance(part, StagedModel):
        owned = {id(parameter) for parameter in part.pipeline.shared_weights.owned(given)}
        copies = [number for number, parameter in enumerate(given) if id(parameter) not in owned]
    return StatePart(state, copies, part is not None and len(mine) == len(given))


def numbers_of(optimizer: torch.optim.Optimizer, part: Part | None) -> set[int]:
    """The numbers of the parameters that lie on this rank: all of them, as long as its part of the model is not known."""
    held = None if part is None else {id(parameter) for _, parameter in part.named_parameters()}
    return {number for number, each in enumerate(_parameters(optimizer)) if held is None or id(each) in held}


def merged(parts: Sequence[StatePart], fix: str) -> StateDict:
    """The state over the whole model. UserError if two parts have the same parameter, which is no copy; `fix` says how to
    build the optimizer."""
    state: dict[object, Any] = {}
    for part in parts:
        own = part.without_copies().state["state"]
        if both := state.keys() & own.keys():
            raise UserError(
                f"optimizer: two ranks have state of parameter {min(both, key=str)}; allowed: one; fix: {fix}, not "
                "over local_parameters(), or load on as many ranks as have saved, without merging"
            )
        state |= own
    return parts[0].state | {"state": state}


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
