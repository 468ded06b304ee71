"""One stage as a pipeline runs it: its precision, recomputation, and the tensors that cross to other ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from algorun_train.common.errors import UserError
from algorun_train.parallel.cut.partial_forward import PartialForward
from algorun_train.parallel.model.precision import AUTOCAST
from algorun_train.parallel.model.recompute import recomputed
from algorun_train.parallel.model.segments import TensorSpec
from algorun_train.parallel.model.trees import leaves, mapped
from algorun_train.parallel.shard.layer_units import layer_units
from algorun_train.parallel.shard.sharded_model import ShardMesh, shard

from .options import RunOptions

NOTHING = torch.empty(0)


class _Received(torch.autograd.Function):
    """A tensor received from another stage, as one that modules may change in place. Its gradient, which is sent back,
    is contiguous, as gloo needs it."""

    @staticmethod
    def forward(ctx: object, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()  # a view could not be changed in place

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.contiguous()


def _received(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.requires_grad:
        return tensor
    changeable: torch.Tensor = _Received.apply(tensor)  # type: ignore[no-untyped-call]  # torch's own
    return changeable


def _sendable(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, as gloo needs it, and not a view: schedules that split the backward pass detach it in place."""
    return tensor.contiguous() if tensor._base is None else tensor.clone(memory_format=torch.contiguous_format)


class Stage(nn.Module):
    """A stage in its precision, recomputed in the backward pass if the options say so.

    It returns the tensors of its result, one or a tuple, in the types of the boundary: autocast may compute in bfloat16,
    but the next stage receives the type that the uncut model would use there. A stage that `sends` its result raises a
    UserError for another shape than the boundary's: the receiver would take it for the data that it expects.
    """

    def __init__(
        self, module: nn.Module, output: Sequence[TensorSpec], device: str, options: RunOptions, sends: bool = False
    ) -> None:
        """`output` are the tensors that leave the stage, `device` the type of its device ("cpu", "cuda")."""
        super().__init__()
        self.module = module
        self._sent = [spec.shape for spec in output] if sends else None
        self._types, self._recompute = [spec.dtype for spec in output], options.recompute
        self._device, self._autocast = device, AUTOCAST[options.precision]
        self._nesting: object = None
        self._sharded: ShardedStage | None = None

    def shard(self, mesh: ShardMesh, microbatches: int) -> None:
        """Leaves each rank of `mesh` its share of the weights. Call it on all of them, before anything uses the weights.

        Weights are gathered in the stage's precision. Autocast stays on: constants that the stage computes are float32,
        and no unit converts them.
        """
        self._sharded = ShardedStage(self.module, mesh, self._autocast, microbatches)

    def backward_begins(self) -> None:
        """Call it before each backward pass of this stage."""
        if self._sharded:
            self._sharded.backward_begins()

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        with torch.autocast(self._device, self._autocast) if self._autocast else contextlib.nullcontext():
            inputs = tuple(_received(each) for each in inputs)
            again = self._recompute and torch.is_grad_enabled()
            result = recomputed(self.module, self.module, *inputs) if again else self.module(*inputs)
        tensors = tuple(_sendable(tensor.to(dtype)) for tensor, dtype in zip(leaves(result), self._types, strict=True))
        return self._checked(result, tensors)

    def forward_under(
        self, autocast: torch.dtype | None, *inputs: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """A forward pass alone, under another autocast (None: without autocast). Tensors keep the types that result."""
        with torch.autocast(self._device, autocast, enabled=autocast is not None):
            result = self.module(*inputs)
        return self._checked(result, tuple(leaves(result)))

    def _checked(self, result: object, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor | tuple[torch.Tensor, ...]:
        if self._sent is not None and [tuple(tensor.shape) for tensor in tensors] != [tuple(s) for s in self._sent]:
            found, expected = ([list(each) for each in shapes] for shapes in ((t.shape for t in tensors), self._sent))
            raise UserError(
                f"what leaves a pipeline stage has the shape {found}; allowed: {expected}, as when the model was cut; "
                "fix: a model in which shapes do not depend on the data, or cut it elsewhere"
            )
        self._nesting = mapped(result, lambda _: NOTHING)
        return tensors if len(tensors) > 1 else tensors[0]

    def as_returned(self, output: torch.Tensor | Sequence[torch.Tensor]) -> object:
        """`output`, the latest result of this stage, nested as the module has returned it: in a dictionary, say."""
        tensors = iter([output] if isinstance(output, torch.Tensor) else output)
        return mapped(self._nesting, lambda _: next(tensors))


class FirstStage(nn.Module):
    """The first stage, called with the number of a microbatch: torch's schedules could split its tensors only along one
    axis."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage
        self.microbatches: Sequence[Sequence[torch.Tensor]] = ()

    def forward(self, number: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        result: torch.Tensor | tuple[torch.Tensor, ...] = self.stage(*self.microbatches[int(number)])
        return result


class ShardedStage:
    """A stage whose weights are sharded over the replicas that hold it (FSDP2): units, precision, and when gradients travel.

    Shards `module`, the module of the stage; its parameters are then new ones. Call it on all ranks of `mesh`."""

    def __init__(self, module: nn.Module, mesh: ShardMesh, half: torch.dtype | None, passes: int) -> None:
        """With `half` the stage computes in it. `passes`: backward passes per step that add to every gradient."""
        self._module, self._passes, self._seen = module, passes, 0
        entered = isinstance(module, PartialForward)
        foreign = module.entered_or_left() if isinstance(module, PartialForward) else frozenset()
        names = {id(each): name for name, each in module.named_modules()}
        units = [unit for unit in layer_units(module) if names[id(unit)] not in foreign]
        shard(module, units, mesh, half)
        if entered:
            cast(PartialForward, module).receive_before_hooks(units)

    def backward_begins(self) -> None:
        """Call it before each backward pass. Gradients are reduced in the last one of a step, whichever microbatch it is of:
        until then a rank holds those of its whole stage."""
        self._seen += 1
        is_last = self._seen == self._passes
        if is_last or self._seen == 1:
            cast(FSDPModule, self._module).set_requires_gradient_sync(is_last)
        if is_last:
            self._seen = 0
