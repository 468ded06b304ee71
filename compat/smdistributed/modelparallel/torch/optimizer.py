"""smp.DistributedOptimizer: torch's own optimizer, whose state is that of the whole model or of this rank's part."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from algorun_train.errors import UserError
from smdistributed.script_types import Given, Result, StateDict

from .messages import CPU, gathered
from .session import session
from .state_keys import COPIES, PARTIAL

SCALING = {
    "init_scale",
    "scale_factor",
    "scale_window",
    "min_scale",
    "delayed_shift",
    "consecutive_hysteresis",
    "dynamic_loss_args",
}
BUILD = "build it over model.parameters()"
_expected: list[Callable[[DistributedOptimizer], None]] = []  # what is to be done once the script has its optimizer


def when_there(act: Callable[[DistributedOptimizer], None]) -> None:
    """Calls `act(optimizer)` now, or when the script makes its DistributedOptimizer."""
    known = session().optimizer
    if known is None:
        _expected.append(act)
    else:
        act(known)


if TYPE_CHECKING:
    Own = torch.optim.Optimizer
else:
    Own = object  # `__new__` mixes the optimizer's own class in, after this one


class DistributedOptimizer(Own):
    """A wrapper that returns the optimizer itself, of a class that is both its own and this one.

    `optimizer` may be built over all parameters of the model, before or after the model is wrapped; those of other
    ranks get no gradients and so no state. The loss scales matter in training with fp16 only, which is refused, so
    they have no effect. Raises UserError for another object, or for an unknown parameter of a loss scale.
    """

    def __new__(
        cls,
        optimizer: Given = None,
        static_loss_scale: float | None = 1.0,
        dynamic_loss_scale: bool = False,
        **dynamic_loss_args: Given,
    ) -> Result:
        if cls is not DistributedOptimizer:
            return super().__new__(cls)  # a copy of one that is wrapped
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise UserError(
                f"smp.DistributedOptimizer: {type(optimizer).__name__}; allowed: an optimizer of torch.optim; "
                "fix: wrap the optimizer itself"
            )
        if unknown := dynamic_loss_args.keys() - SCALING:
            raise UserError(
                f"smp.DistributedOptimizer: {', '.join(sorted(unknown))}; allowed: {', '.join(sorted(SCALING))}; "
                "fix: leave it out"
            )
        now = session()
        if not isinstance(optimizer, DistributedOptimizer):
            own = type(optimizer)
            optimizer.__class__ = type(
                f"Distributed{own.__name__}", (DistributedOptimizer, own), {"__doc__": own.__doc__}
            )
        assert isinstance(optimizer, DistributedOptimizer)  # it is of the new class now
        now.optimizer = optimizer
        while _expected:
            _expected.pop(0)(optimizer)
        return optimizer

    def __init__(self, *args: Given, **kwargs: Given) -> None:
        """The optimizer is made already."""

    def local_state_dict(self) -> StateDict:
        """The state of this rank's parameters, and the key `_smp_is_partial`. `_smp_copies` are the numbers of those whose
        state is another rank's as well."""
        copies = self._copies()
        return super().state_dict() | {PARTIAL: True} | ({COPIES: copies} if copies else {})

    def state_dict(self) -> StateDict:
        """The state of all parameters, on the CPU where there are several ranks. On all ranks of a pipeline.

        Raises UserError where the optimizer was built over the parameters of one rank.
        """
        own = super().state_dict()
        group, copies = session().axes.pp_group, self._copies()
        if group is None:
            return own
        own["state"] = {number: each for number, each in own["state"].items() if number not in copies}
        rows = gathered((own, self._is_of_one_rank()), group, CPU)
        if all(alone for _, alone in rows):
            raise UserError(
                "optimizer.state_dict: the optimizer was built over local_parameters(), whose numbers mean nothing to "
                f"other ranks; allowed: local_state_dict(); fix: {BUILD} for the whole state"
            )
        return merged([state for state, _ in rows])

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Loads the state of all parameters, or the parts of all ranks, on all ranks of a pipeline.

        Learning rates and the like are there at once, the state of this rank's parameters once the model is
        partitioned. Raises UserError for the state of another optimizer.
        """
        state, group = dict(state_dict), session().axes.pp_group
        if state.pop(PARTIAL, False) and not all(gathered(self._is_of_one_rank(), group, CPU)):
            state = merged(gathered(state, group, CPU))
        lengths = [[len(group["params"]) for group in groups] for groups in (self.param_groups, state["param_groups"])]
        if lengths[0] != lengths[1]:
            raise UserError(
                f"optimizer.load_state_dict: state of {lengths[1]} parameters in its groups; allowed: {lengths[0]}; "
                f"fix: {BUILD} on both sides, and give its groups the same order"
            )
        super().load_state_dict({"state": {}, "param_groups": state["param_groups"]})
        session().on_partition(lambda: self._fill(state["state"]))

    def _fill(self, state: dict[object, Given]) -> None:
        """Takes over the state of this rank's parameters. The rates stay what a scheduler has made of them since."""
        mine = _local_parameters()
        numbers = {
            number
            for number, parameter in enumerate(p for group in self.param_groups for p in group["params"])
            if mine is None or id(parameter) in mine
        }
        kept = {key: value for key, value in state.items() if key in numbers or not isinstance(key, int)}
        super().load_state_dict({"state": kept, "param_groups": super().state_dict()["param_groups"]})

    def _copies(self) -> list[int]:
        """Numbers of the parameters that are copies of another rank's weights."""
        staged = session().staged
        if staged is None:
            return []
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        own = {id(parameter) for parameter in staged.pipeline.shared_weights.owned(parameters)}
        return [number for number, parameter in enumerate(parameters) if id(parameter) not in own]

    def _is_of_one_rank(self) -> bool:
        """True where none of its parameters belongs to another rank of the pipeline."""
        mine = _local_parameters()
        return mine is not None and all(id(p) in mine for group in self.param_groups for p in group["params"])


def _local_parameters() -> set[int] | None:
    """The identities of this rank's parameters; None as long as it is not known which these are."""
    now = session()
    if now.model is None or not now.partitioned:
        return None
    return {id(parameter) for _, parameter in now.model.local_named_parameters()}


def merged(parts: list[StateDict]) -> StateDict:
    """The state of the whole model from that of its parts. UserError where two parts have the same parameter, which is
    no copy."""
    state: dict[object, Given] = {}
    for part in parts:
        own = {number: each for number, each in part["state"].items() if number not in part.get(COPIES, ())}
        if both := state.keys() & own.keys():
            raise UserError(
                f"optimizer: two ranks have state of parameter {min(both, key=str)}; allowed: one; fix: {BUILD}, not "
                "over local_parameters(), or load on as many ranks as have saved, without merging"
            )
        state |= own
    return {key: value for key, value in parts[0].items() if key not in (PARTIAL, COPIES)} | {"state": state}
