"""A piece of a model as a pipeline runs it: precision, recomputation, and what crosses to other ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from algorun_train.errors import UserError

from .segments import TensorSpec
from .trees import leaves, mapped

NOTHING = torch.empty(0)


@contextlib.contextmanager
def _statistics_kept(module: nn.Module) -> Iterator[None]:
    """A forward pass that is done again does not count again for the running statistics of BatchNorm."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    kept = [
        (norm.momentum, None if norm.num_batches_tracked is None else norm.num_batches_tracked.clone())
        for norm in norms
    ]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, kept, strict=True):
            norm.momentum = momentum
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked.copy_(count)


def recomputed(
    forward: Callable[..., Any], module: nn.Module, *args: Any, preserve_rng_state: bool = True, **kwargs: Any
) -> Any:
    """forward(*args, **kwargs), a call of `module`, with its activations computed again in the backward pass."""
    return checkpoint(
        forward, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state,
        context_fn=lambda: (contextlib.nullcontext(), _statistics_kept(module)), **kwargs,
    )  # fmt: skip


class _Arrived(torch.autograd.Function):
    """A tensor from another stage as it is, for modules to change in place as well; the gradient that goes back there
    is contiguous, as gloo wants it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()  # a view could not be changed in place

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient.contiguous()


def _sendable(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, as gloo wants what it sends, and no view: schedules that split the backward pass detach it in place."""
    return tensor.contiguous() if tensor._base is None else tensor.clone(memory_format=torch.contiguous_format)


class Stage(nn.Module):
    """A piece of the model as the pipeline runs it: in its precision, and recomputed in the backward pass if wished.

    It returns the tensors of its result, one or a tuple, in the types of the boundary: autocast may compute in
    bfloat16, but what crosses to another rank is what the model without a pipeline would have gone on with. Where it
    `sends`, another shape than the boundary's is a UserError: the receiver would take it for the data that it expects.
    """

    def __init__(
        self,
        module: nn.Module,
        output: Sequence[TensorSpec],
        device: str,
        autocast: torch.dtype | None,
        recompute: bool,
        sends: bool = False,
    ) -> None:
        super().__init__()
        self.module = module
        self._sent = [spec.shape for spec in output] if sends else None
        self._types, self._recompute = [spec.dtype for spec in output], recompute
        self._device, self._autocast = device, autocast
        self._shape: Any = None

    def forward(self, *inputs: torch.Tensor) -> Any:
        with torch.autocast(self._device, self._autocast) if self._autocast else contextlib.nullcontext():
            inputs = tuple(_Arrived.apply(each) if each.requires_grad else each for each in inputs)
            again = self._recompute and torch.is_grad_enabled()
            result = recomputed(self.module, self.module, *inputs) if again else self.module(*inputs)
        many = tuple(_sendable(tensor.to(dtype)) for tensor, dtype in zip(leaves(result), self._types, strict=True))
        return self._result(result, many)

    def under(self, autocast: torch.dtype | None, *inputs: torch.Tensor) -> Any:
        """A forward pass alone, under another autocast (None: without any), in the types that come of it."""
        with torch.autocast(self._device, autocast, enabled=autocast is not None):
            result = self.module(*inputs)
        return self._result(result, tuple(leaves(result)))

    def _result(self, result: Any, many: tuple[torch.Tensor, ...]) -> Any:
        if self._sent is not None and [tuple(tensor.shape) for tensor in many] != [tuple(s) for s in self._sent]:
            found, wanted = ([list(each) for each in shapes] for shapes in ((t.shape for t in many), self._sent))
            raise UserError(
                f"what leaves a pipeline stage has the shape {found}; allowed: {wanted}, as when the model was cut; "
                "fix: a model in which shapes do not depend on the data, or cut it elsewhere"
            )
        self._shape = mapped(result, lambda _: NOTHING)
        return many if len(many) > 1 else many[0]

    def whole(self, output: Any) -> Any:
        """The latest result as the module has returned it: in a dictionary, say."""
        tensors = iter(output if isinstance(output, (tuple, list)) else (output,))
        return mapped(self._shape, lambda _: next(tensors))


class FirstStage(nn.Module):
    """Takes the number of a microbatch for its tensors, which torch's schedules could only split along one axis."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage
        self.parts: Sequence[Sequence[torch.Tensor]] = ()

    def forward(self, number: torch.Tensor) -> Any:
        return self.stage(*self.parts[int(number)])
