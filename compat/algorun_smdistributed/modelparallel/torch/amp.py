"""smp.amp: a gradient scaler whose ranks agree."""

from __future__ import annotations

import torch
import torch.distributed as dist

from algorun_smdistributed.script_types import Given

from .session import context

__all__ = ["GradScaler"]


class GradScaler(torch.amp.GradScaler):
    """torch's GradScaler, for parameters that lie on several ranks: when one has found an infinite gradient, all skip.

    Arguments are those of torch.cuda.amp.GradScaler; `device` comes from the session. `step` and `unscale_` have to be
    called on all ranks of a pipeline. A rank need not have computed a loss, nor have a gradient.
    """

    def __init__(self, *args: Given, device: str | None = None, **kwargs: Given) -> None:
        if args and isinstance(args[0], str):
            device, args = args[0], args[1:]
        names = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
        super().__init__(device or context().comm.device.type, **dict(zip(names, args, strict=False)), **kwargs)

    def _check_scale_growth_tracker(self, funcname: str) -> tuple[torch.Tensor, torch.Tensor]:
        if self._scale is None:  # the loss is scaled on the last rank of a pipeline only
            self._lazy_init_scale_growth_tracker(context().comm.device)
        return super()._check_scale_growth_tracker(funcname)

    def _unscale_grads_(self, optimizer: torch.optim.Optimizer, *args: Given) -> dict[torch.device, torch.Tensor]:
        found = super()._unscale_grads_(optimizer, *args)
        assert self._scale is not None
        total = torch.zeros((), device=self._scale.device)
        for flag in found.values():
            total += flag.to(total.device)
        group = context().axes.pp_group
        if group is not None:
            dist.all_reduce(total, dist.ReduceOp.MAX, group=group)
        return {total.device: total}
