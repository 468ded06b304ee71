"""Where gradients are used: torch's optimizers, gradient scalers and clipping tell the model before they do.

For parameters that lie on several ranks, clipping is by the norm of all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch.nn import utils
from torch.optim.optimizer import register_optimizer_step_pre_hook

Parameters = torch.Tensor | Iterable[torch.Tensor]
_of_one_rank, _values = utils.clip_grad_norm_, utils.clip_grad_value_


class Watched(Protocol):
    """A model whose gradients have to be reduced before they are used."""

    def before_use(
        self, parameters: Iterable[torch.Tensor], optimizer: torch.optim.Optimizer | None = None, steps: bool = False
    ) -> None:
        """The gradients of `parameters` are used now, by `optimizer` if one is given. `steps`: in its step, after which
        they are used up."""

    def norm_over_ranks(self, parameters: list[torch.Tensor], order: float) -> torch.Tensor | None:
        """The norm of the gradients of parameters on several ranks, which all of them give; None for one rank's own."""


class GradientUse:
    """Watches a process's use of gradients for the model that `model` returns, None as long as there is none."""

    def __init__(self, model: Callable[[], Watched | None]) -> None:
        self._model = model

    def install(self) -> None:
        """From now on, for code that looks up torch's functions. Scalers too: they look for infinite gradients, and
        replicas that found different ones would part ways."""

        @functools.wraps(_of_one_rank)
        def clip_grad_norm_(*args: Any, **kwargs: Any) -> torch.Tensor:  # torch's own arguments
            return self.clip_grad_norm(*args, **kwargs)

        @functools.wraps(_values)
        def clip_grad_value_(*args: Any, **kwargs: Any) -> None:  # torch's own arguments
            self.clip_grad_value(*args, **kwargs)

        utils.clip_grad_norm_ = utils.clip_grad.clip_grad_norm_ = clip_grad_norm_
        utils.clip_grad_value_ = utils.clip_grad.clip_grad_value_ = clip_grad_value_
        # Not part of a compiled step: it talks to other ranks. What this imports, the first optimizer would import anyway.
        register_optimizer_step_pre_hook(torch.compiler.disable(self._before_step))
        scaler: Any = torch.amp.GradScaler  # types do not let its methods be replaced
        scaler.unscale_, scaler.step = self._reduced(scaler.unscale_), self._reduced(scaler.step)

    def clip_grad_norm(
        self,
        parameters: Parameters,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> torch.Tensor:
        """As torch's own, and for parameters of several ranks the same result on all of them.

        All of these ranks call it then, with the same parameters of the model. Parameters that are this rank's own are
        clipped by their own norm, without the other ranks.
        """
        given, model = self._given(parameters), self._model()
        norm = model.norm_over_ranks(given, float(norm_type)) if model else None
        if norm is None:
            return _of_one_rank(given, max_norm, norm_type, error_if_nonfinite, foreach)
        if error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(  # torch's own kind
                f"clip_grad_norm_: the norm of order {norm_type} over all stages is {norm.item()}; "
                "fix: error_if_nonfinite=False, or look for the step that made it"
            )
        utils.clip_grads_with_norm_(given, max_norm, norm, foreach=foreach)
        return norm

    def clip_grad_value(self, parameters: Parameters, clip_value: float, foreach: bool | None = None) -> None:
        """As torch's own."""
        _values(self._given(parameters), clip_value, foreach)

    def _given(self, parameters: Parameters) -> list[torch.Tensor]:
        """The parameters, whose gradients are reduced."""
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if model := self._model():
            model.before_use(given)
        return given

    def _by(self, optimizer: torch.optim.Optimizer, steps: bool = False) -> None:
        groups = getattr(optimizer, "param_groups", ())
        if model := self._model():
            model.before_use((parameter for group in groups for parameter in group["params"]), optimizer, steps)

    def _before_step(
        self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:  # as torch has its hooks
        """For every optimizer; a closure makes the gradients anew, so they are reduced after each call."""
        closure = kwargs["closure"] if "closure" in kwargs else args[1] if len(args) > 1 else None
        if not callable(closure):
            self._by(optimizer, steps=True)
            return None

        def reduced() -> object:
            loss = closure()
            self._by(optimizer, steps=True)
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": reduced}
        return (args[0], reduced, *args[2:]), kwargs

    def _reduced(self, method: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(method)
        def use(
            scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, *args: object, **kwargs: object
        ) -> object:
            if scaler.is_enabled():
                self._by(optimizer)
            return method(scaler, optimizer, *args, **kwargs)

        return use
