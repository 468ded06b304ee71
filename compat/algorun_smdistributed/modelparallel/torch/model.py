"""DistributedModel: the script's model, in stages on the ranks of a pipeline, with its replicas."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Self

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from algorun_smdistributed.modelparallel.core.answers import scalar
from algorun_smdistributed.modelparallel.core.script_model import ScriptModel
from algorun_smdistributed.modelparallel.core.sharded_state import ShardedModelState
from algorun_smdistributed.modelparallel.core.state_keys import PARTIAL
from algorun_smdistributed.replicas.part import ReplicaOptions
from algorun_smdistributed.replicas.uneven import UnevenReplicas
from algorun_smdistributed.script_types import Given, Result, StateDict
from algorun_smdistributed.signatures.whole_state import Calls, WholeState
from algorun_train.common.errors import UserError

from . import transformer_names
from .module_view import ModuleView
from .session import session
from .tensor_parallel import NothingDistributed

OUTSIDE = (
    "{} outside of an @smp.step function; allowed: inside, with more than one partition; fix: move the call into one"
)
STATE_CALLS = Calls("model.module.state_dict()", "model.state_dict()", "model.local_state_dict()")


class DistributedModel(NothingDistributed, nn.Module):
    """Holds `module` for @smp.step functions: they call it, and its `backward`.

    The model is cut at the first step, for the shapes seen there; with one partition it is placed at once. Only one per
    script. `trace_device`, `trace_execution_times`, `trace_memory_usage`, `bucket_cap_mb`, `gradient_as_bucket_view` and
    `find_unused_parameters` have no effect: units are profiled on the device that trains, gradients travel in buckets of
    25 MiB, and a parameter that a replica does not use counts as zero there.
    """

    _view: ModuleView

    def __init__(
        self,
        module: nn.Module,
        trace_device: str = "gpu",
        trace_execution_times: bool = False,
        overlapping_allreduce: bool = True,
        backward_passes_per_step: int = 1,
        average_grads_across_microbatches: bool = True,
        bucket_cap_mb: float = 25,
        trace_memory_usage: bool = False,
        broadcast_buffers: bool = True,
        gradient_as_bucket_view: bool = False,
        find_unused_parameters: bool = False,
    ) -> None:
        super().__init__()
        here = session()
        if here.model is not None:
            raise UserError(
                "a second smp.DistributedModel; allowed: one per script; fix: put both models into one module"
            )
        if backward_passes_per_step < 1:
            raise UserError(f"backward_passes_per_step = {backward_passes_per_step}; allowed: 1 or more; fix: give one")
        self._modules["module"] = module  # names of parameters begin with "module.", whatever wraps it
        self.__dict__["_view"] = ModuleView(module)  # no module of this one, or its weights would have two names
        self._overlaps = overlapping_allreduce
        transformer_names.give(module)
        replicas = ReplicaOptions(
            every=backward_passes_per_step,
            overlap=overlapping_allreduce,
            no_overlap="smp.DistributedModel(.., overlapping_allreduce=False)",
            equal_buffers=broadcast_buffers,
        )
        here.context.known["model"] = self
        here.model = self._placed = ScriptModel(here.context, module, replicas, average_grads_across_microbatches)
        self._unsharded = WholeState(self._placed, STATE_CALLS)
        self._placed.place()

    def get_module(self) -> nn.Module:
        """The script's own module."""
        return self._modules["module"]  # type: ignore[return-value]

    @property
    def module(self) -> ModuleView:
        """A wrapper of the script's module, as DistributedDataParallel is one: its own `module` is the script's."""
        return self._view

    @property
    def _state(self) -> WholeState | ShardedModelState:
        return self._placed.shares or self._unsharded

    # -- passes -------------------------------------------------------------------------------------------------------

    def forward(self, *args: Given, **kwargs: Given) -> Result:
        if self._placed.answer is not None:
            return self._placed.answer.call(args, kwargs)
        if self._placed.whole is None:
            raise UserError(OUTSIDE.format("the model is called"))
        self._placed.first_pass()
        return self.get_module()(*args, **kwargs)

    def backward(self, tensors: Given, grad_tensors: Given = None) -> None:
        """As torch.autograd.backward, for the loss of this microbatch; the gradients are there when the step is over.

        With one partition also outside of a step function: then they are reduced when the optimizer uses them.
        """
        if self._placed.answer is not None:
            self._placed.answer.backward(scalar(tensors, grad_tensors))
        elif self._placed.sharded is not None:
            with self._placed.sharded.counted():
                (scalar(tensors, grad_tensors) * self._placed.loss_scale).backward()
        elif self._placed.whole is not None:
            scalar(tensors, grad_tensors).backward()
        else:
            raise UserError(OUTSIDE.format("model.backward is called"))

    @property
    def partitioned(self) -> bool:
        """Whether this rank has its part of the model."""
        return self._placed.part is not None

    def register_post_partition_hook(self, hook: Callable[..., Result]) -> RemovableHandle:
        """Calls hook(model, optimizer) once the model is partitioned, before the first forward pass."""
        handle = RemovableHandle(self._placed.before_first_pass)
        self._placed.before_first_pass[handle.id] = lambda: hook(self, session().optimizer)
        return handle

    # -- replicas -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """Training with different numbers of batches on the replicas; every rank trains inside, in a loop of its own.

        One that has no batch left takes part in the others' steps with gradients of zero, and has their weights
        afterwards. Gradients are the mean over all replicas, or, without `divide_by_initial_world_size`, over those that
        have a batch.
        """
        group = self._placed.context.axes.dp_group
        if group is None or not enable:
            yield
            return
        with self._placed.uneven(UnevenReplicas(group, throw_on_early_termination, divide_by_initial_world_size)):
            yield

    def register_comm_hook(self, state: Given, hook: Callable[[Given, Given], Given]) -> None:
        """hook(state, bucket) reduces a bucket of gradients over the replicas, in the place of the mean.

        As DistributedDataParallel's: `bucket` has buffer(), gradients(), parameters(), index() and is_last(), and the hook
        returns a Future of the buffer's new content. It also has to divide by the microbatches. Torch's ready-made hooks
        take the process group as `state`: smp.get_dp_process_group().
        """
        if self._placed.context.axes.dp_group is None:
            raise UserError(
                'register_comm_hook: there is one replica; allowed: with "ddp": true and several; fix: drop it'
            )
        if self._placed.gradient_hook is not None:
            raise UserError(
                "register_comm_hook: there is one already; allowed: one; fix: register a hook that does both"
            )
        if not self._overlaps:
            raise UserError("register_comm_hook: overlapping_allreduce is False; allowed: True; fix: leave it out")
        self._placed.reduce_by(functools.partial(hook, state))

    _register_comm_hook = register_comm_hook  # its older name

    # -- weights ------------------------------------------------------------------------------------------------------

    def local_named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of this rank, under their names in the whole model. UserError before the model is partitioned."""
        return ((prefix + name, parameter) for name, parameter in self._placed.there().named_parameters())

    def local_parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """As `local_named_parameters`, without names."""
        return (parameter for _, parameter in self.local_named_parameters())

    def local_named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        """Buffers of this rank, as `local_named_parameters`."""
        return ((prefix + name, buffer) for name, buffer in self._placed.there().named_buffers())

    def local_buffers(self, recurse: bool = True) -> Iterator[torch.Tensor]:
        """As `local_named_buffers`, without names."""
        return (buffer for _, buffer in self.local_named_buffers())

    def local_named_modules(
        self, memo: Given = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Modules of this rank: those with parameters or buffers that are not elsewhere, and what is in them."""
        own = {id(tensor) for _, tensor in (*self.local_named_parameters(), *self.local_named_buffers())}
        for root in self._placed.there().roots:
            for name, module in root.named_modules():
                if any(id(tensor) in own for tensor in (*module.parameters(), *module.buffers())):
                    yield prefix + name, module

    def local_modules(self) -> Iterator[nn.Module]:
        """As `local_named_modules`, without names."""
        return (module for _, module in self.local_named_modules())

    def local_state_dict(self, *args: Given, **kwargs: Given) -> StateDict:
        """This rank's part of the state dict; `_smp_is_partial` says whether there is more elsewhere."""
        if isinstance(self._state, ShardedModelState):
            return self._state.local()
        return {**self._placed.there().state_dict(), PARTIAL: self._placed.staged is not None}

    def state_dict(self, *args: Given, gather_to_rank0: bool = False, **kwargs: Given) -> StateDict:  # type: ignore[override]
        """The whole model's state dict, under the names of `module`. On all ranks with the same dp_rank, or of a replica of
        shares; with `gather_to_rank0` only the first of these gets it, and the others get {}."""
        if isinstance(self._state, ShardedModelState):
            return self._state.whole(gather_to_rank0)
        return self._state.whole()

    def load_state_dict(
        self,
        state_dict: Mapping[str, Given],
        strict: bool = True,
        assign: bool = False,
        same_partition_load: bool = False,
    ) -> Result:
        """Takes a whole state dict, or the parts of one, each rank its own.

        `same_partition_load` has no effect: parts of the same partition load as any others do. Where the model is not
        partitioned yet, the module is loaded as a whole, and cut afterwards.
        """
        state = dict(state_dict)
        if isinstance(self._state, ShardedModelState):
            return self._state.load(state, strict)
        if state.pop(PARTIAL, False):
            state = self._state.union(state)
        return self._state.load(state, strict, assign)

    def cpu(self) -> Self:
        """The module with the weights of all ranks, on the CPU. On all ranks with the same dp_rank."""
        self._state.onto_cpu()
        return self
