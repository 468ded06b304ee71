"""smp.DistributedOptimizer: torch's own optimizer, whose state is that of the whole model or of this rank's part."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist

from algorun_smdistributed.modelparallel.core.loss_scale import LossScale
from algorun_smdistributed.modelparallel.core.sharded_state import (
    loaded_optimizer_state,
    local_optimizer_state,
    whole_optimizer_state,
)
from algorun_smdistributed.modelparallel.core.sharded_step import FlatShares, ShardedStep
from algorun_smdistributed.modelparallel.core.state_keys import BUILD, PARTIAL, with_keys, without_keys
from algorun_smdistributed.replicas.part import Part
from algorun_smdistributed.script_types import Given, Result, StateDict
from algorun_smdistributed.signatures import optimizer_state
from algorun_train.common.errors import UserError

from .session import session

SCALING = {
    "init_scale",
    "scale_factor",
    "scale_window",
    "min_scale",
    "delayed_shift",
    "consecutive_hysteresis",
    "dynamic_loss_args",
}

if TYPE_CHECKING:
    Own = torch.optim.Optimizer
else:
    Own = object  # `__new__` mixes the optimizer's own class in, after this one


class DistributedOptimizer(Own):
    """A wrapper that returns the optimizer itself, of a class that is both its own and this one.

    `optimizer` may be built over all parameters of the model, before or after the model is wrapped; those of other
    ranks get no gradients and so no state. The loss scales matter in training with fp16 only. With sharded data
    parallelism a step clips by `sdp_gradient_clipping`, and the optimizer has what AWS's example scripts read of it:
    `_global_grad_norm`, `overflow`, `loss_scale`, `fp32_partitioned_groups_flat`, `ds_param_shard_group`.
    Raises UserError for another object, or for an unknown parameter of a loss scale.
    """

    _step: ShardedStep | None

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
            optimizer.__dict__["_step"] = None
            extra = dynamic_loss_args.pop("dynamic_loss_args", None) or {}
            scale = LossScale(static_loss_scale, dynamic_loss_scale, {**dynamic_loss_args, **extra})
            distributed = cast("DistributedOptimizer", optimizer)
            now.context.partition.then(lambda: distributed._shard(scale))
        now.optimizer = now.context.known["optimizer"] = optimizer
        now.optimizer_is_made.happens()
        return optimizer

    def __init__(self, *args: Given, **kwargs: Given) -> None:
        """The optimizer is made already."""

    def _shard(self, scale: LossScale) -> None:
        """From now on its parameters are shares, if the model is sharded."""
        model = session().model
        if model is not None and model.sharded is not None:
            self._step = ShardedStep(self, model.sharded, scale if model.sharded.options.half == "fp16" else None)

    # -- what AWS's example scripts read, with sharded data parallelism ---------------------------------------------------

    @property
    def _global_grad_norm(self) -> float | None:
        return self._sharded("_global_grad_norm").norm

    @property
    def overflow(self) -> bool:
        """Whether the last step was left out, because a gradient of float16 was infinite."""
        return self._sharded("overflow").overflow

    @property
    def loss_scale(self) -> float:
        """By which `model.backward` multiplies the next loss."""
        return self._sharded("loss_scale").sharded.loss_scale

    @property
    def fp32_partitioned_groups_flat(self) -> list[FlatShares]:
        """For each group the rows of this rank."""
        self._sharded("fp32_partitioned_groups_flat")
        return [FlatShares(group["params"]) for group in self.param_groups]

    @property
    def ds_param_shard_group(self) -> dist.ProcessGroup:
        """The ranks that hold one model together."""
        return self._sharded("ds_param_shard_group").sharded.mesh.group

    def _sharded(self, name: str) -> ShardedStep:
        if self._step is None:
            raise AttributeError(f"{type(self).__name__} has {name!r} with sharded data parallelism only")
        return self._step

    # -- state --------------------------------------------------------------------------------------------------------

    def local_state_dict(self, gather_if_shard: bool = True) -> StateDict:
        """The state of this rank's parameters, and the key `_smp_is_partial`. `_smp_copies` are the numbers of those whose
        state is another rank's as well. `gather_if_shard` has no effect: parts stay parts."""
        if self._step is not None:
            return self._step.with_scale(local_optimizer_state(super().state_dict(), self._step.sharded.mesh))
        return with_keys(self._part())

    def state_dict(self, gather_to_rank0: bool = False) -> StateDict:
        """The state of all parameters, on the CPU where there are several ranks. On all ranks of a pipeline, or of a replica
        of shares; with `gather_to_rank0` only the first of these gets it.

        Raises UserError where the optimizer was built over the parameters of one rank.
        """
        if self._step is not None:
            whole = whole_optimizer_state(super().state_dict(), self._step.sharded.mesh, gather_to_rank0)
            return self._step.with_scale(whole)
        part, context = self._part(), session().context
        if context.layout.grid.pp == 1:
            return part.state
        rows = context.pipeline.gathered(part.without_copies(), "optimizer.state_dict")
        if all(row.is_of_one_rank for row in rows):
            raise UserError(
                "optimizer.state_dict: the optimizer was built over local_parameters(), whose numbers mean nothing to "
                f"other ranks; allowed: local_state_dict(); fix: {BUILD} for the whole state"
            )
        return optimizer_state.merged(rows, BUILD)

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Loads the state of all parameters, or the parts of all ranks, on all ranks of a pipeline.

        Learning rates and the like are there at once, the state of this rank's parameters once the model is
        partitioned. Raises UserError for the state of another optimizer.
        """
        state, context = dict(state_dict), session().context
        if context.mesh is None and state.get(PARTIAL, False):
            given = without_keys(state, self._part().is_of_one_rank)
            rows = context.pipeline.gathered(given, "optimizer.load_state_dict")
            state = given.state if all(row.is_of_one_rank for row in rows) else optimizer_state.merged(rows, BUILD)
        lengths = [[len(group["params"]) for group in groups] for groups in (self.param_groups, state["param_groups"])]
        if lengths[0] != lengths[1]:
            raise UserError(
                f"optimizer.load_state_dict: state of {lengths[1]} parameters in its groups; allowed: {lengths[0]}; "
                f"fix: {BUILD} on both sides, and give its groups the same order"
            )
        super().load_state_dict({"state": {}, "param_groups": state["param_groups"]})
        context.partition.then(lambda: self._fill(state))

    def _fill(self, given: StateDict) -> None:
        """Takes over the state of this rank's parameters. The rates stay what a scheduler has made of them since."""
        if self._step is not None:
            self._step.load_scale(given)
            parameters = [each for group in self.param_groups for each in group["params"]]
            given = loaded_optimizer_state(given, parameters, self._step.sharded.mesh)
        state = given["state"]
        numbers = optimizer_state.numbers_of(self, _part_of_model())
        kept = {key: value for key, value in state.items() if key in numbers or not isinstance(key, int)}
        super().load_state_dict({"state": kept, "param_groups": super().state_dict()["param_groups"]})

    def _part(self) -> optimizer_state.StatePart:
        return optimizer_state.part_of(self, super().state_dict(), _part_of_model())


def _part_of_model() -> Part | None:
    """This rank's; None as long as it is not known."""
    model = session().model
    return model.part if model else None
