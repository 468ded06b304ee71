"""What an optimizer over shares does before each of its steps: it takes the loss scale off, and clips by the norm."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from algorun_smdistributed.script_types import Given, StateDict
from algorun_train.common.errors import UserError

from .loss_scale import LossScale
from .sharded_whole import ShardedWhole, local, scale_gradients
from .state_keys import SCALE

TINY = 1e-6  # as torch's clip_grad_norm_ adds it to the norm


class ShardedStep:
    """Of one optimizer. `scale` is that of the losses, None where they have none."""

    def __init__(self, optimizer: torch.optim.Optimizer, sharded: ShardedWhole, scale: LossScale | None) -> None:
        for group in optimizer.param_groups:
            group["params"] = [sharded.share_of(each) for each in group["params"]]
        self.sharded, self.scale, self.overflow = sharded, scale, False
        self._norm: torch.Tensor | None = None
        sharded.loss_scale = scale.value if scale else 1.0
        # A hook, because a learning rate scheduler may hold the optimizer's own `step` already.
        optimizer.register_step_pre_hook(self._before)

    @property
    def norm(self) -> float | None:
        """Of the gradients of the last step, before they were clipped; None before the first one."""
        return None if self._norm is None else self._norm.item()

    def with_scale(self, state: StateDict) -> StateDict:
        """The optimizer's state dict together with the loss scale, if there is one."""
        return state | {SCALE: self.scale.state()} if self.scale else state

    def load_scale(self, state: StateDict) -> None:
        """Takes over the loss scale of a state dict that has one."""
        if self.scale is not None and SCALE in state:
            self.scale.load(state[SCALE])
            self.sharded.loss_scale = self.scale.value

    def _before(self, optimizer: torch.optim.Optimizer, args: tuple[Given, ...], kwargs: Mapping[str, Given]) -> None:
        closure = kwargs["closure"] if "closure" in kwargs else args[1] if len(args) > 1 else None
        if callable(closure):
            raise UserError(
                "optimizer.step(closure); allowed: without a closure, with sharded data parallelism; fix: compute the loss "
                "before the step"
            )
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        loss_scale, clip = self.sharded.loss_scale, self.sharded.options.clip
        self._norm = norm = self.sharded.norm(parameters, 2.0) / loss_scale
        factor = 1 / loss_scale
        if self.scale is not None:
            self.overflow = not math.isfinite(norm.item())
            self.scale.update(self.overflow)
            self.sharded.loss_scale = self.scale.value
            if self.overflow:
                for each in parameters:
                    each.grad = None  # an optimizer leaves such a parameter alone
                return
        if clip:
            scale_gradients(parameters, torch.clamp(clip / (norm + TINY), max=1.0) * factor)
        elif factor != 1:
            scale_gradients(parameters, factor)


class FlatShares:
    """This rank's shares of one group of an optimizer as if they lay one behind the other, as AWS's example scripts read
    `fp32_partitioned_groups_flat`."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self._parameters = parameters

    def narrow(self, dim: int, start: int, length: int) -> torch.Tensor:
        """The rows of one parameter, which they stay. UserError for a range that is not one parameter's."""
        begin = 0
        for parameter in self._parameters:
            flat = local(parameter).detach().view(-1)
            if (dim, start, length) == (0, begin, flat.numel()):
                return flat
            begin += flat.numel()
        raise UserError(
            f"fp32_partitioned_groups_flat.narrow({dim}, {start}, {length}); allowed: dimension 0 and the range of one "
            "parameter; fix: p.ds_tensor.ds_numel"
        )
