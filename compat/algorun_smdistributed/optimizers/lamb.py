"""LAMB with the name, the arguments and the defaults of apex; in plain operations of torch.

Source: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", algorithm 2, and the
documentation of apex.optimizers.FusedLAMB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from algorun_train.common.errors import UserError


class FusedLAMB(Optimizer):
    """Steps of Adam whose length, for each weight tensor, is in proportion to the norm of its weights.

    Gradients are clipped to `max_grad_norm` first (None: not at all), by the norm over all stages of a pipeline. As in
    apex, tensors without weight decay take steps of Adam unless `use_nvlamb`. `set_grad_none` has no effect: zero_grad()
    always removes gradients. UserError for `amsgrad`, which LAMB does not have.
    """

    def __init__(
        self,
        params: Any,  # as torch's own optimizers take them
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float | None = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        if amsgrad:
            raise UserError("FusedLAMB: amsgrad = True; allowed: False; fix: leave it out")
        names = {"bias_correction": bias_correction, "grad_averaging": grad_averaging, "max_grad_norm": max_grad_norm}
        names |= {"adam_w_mode": adam_w_mode, "use_nvlamb": use_nvlamb}  # in the groups, which copies of it keep
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, **names})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name in ("adam_w_mode", "use_nvlamb"):  # state that was saved without them goes on as this one is
                group.setdefault(name, self.defaults[name])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:  # torch types each call by itself
        """One step; returns the closure's loss. On all ranks of a pipeline, because of the norm."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        limit = self.param_groups[0]["max_grad_norm"]
        if limit:
            every = [parameter for group in self.param_groups for parameter in group["params"]]
            torch.nn.utils.clip_grad_norm_(every, limit)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._one(parameter, parameter.grad, group)
        return loss

    def _one(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        (first, second), decay, count = group["betas"], group["weight_decay"], float(state["step"])
        if decay and not group["adam_w_mode"]:
            gradient = gradient + decay * parameter
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.mul_(first).add_(gradient, alpha=1 - first if group["grad_averaging"] else 1.0)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        correct = group["bias_correction"]
        scale, spread = (1 - first**count, 1 - second**count) if correct else (1.0, 1.0)
        update = (mean / scale) / ((square / spread).sqrt() + group["eps"])
        if decay and group["adam_w_mode"]:
            update = update + decay * parameter
        ratio = 1.0
        if decay or group["use_nvlamb"]:
            weights, length = float(parameter.norm()), float(update.norm())
            ratio = weights / length if weights and length else 1.0
        parameter.sub_(update, alpha=group["lr"] * ratio)
