"""DistributedModel: the script's model, in stages on the ranks of a pipeline, with its replicas."""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from .calls import scalar
from .entry import Entry, Fit, fit
from .messages import CPU, gathered
from .parts import StagedPart, Use, WholePart
from .refused import Refusing
from .replicas import Uneven
from .session import UserError, session
from .tensor_parallel import NothingDistributed

PARTIAL = "_smp_is_partial"


class DistributedModel(NothingDistributed, Refusing, nn.Module):
    """Holds `module` for @smp.step functions: they call it, and its `backward`.

    The model is cut at the first step, for the shapes seen there; with one partition it is placed at once. Only one per
    script. `trace_device`, `trace_execution_times`, `trace_memory_usage`, `bucket_cap_mb` and `gradient_as_bucket_view`
    have no effect: units are profiled on the device that trains, and gradients travel in buckets of 25 MiB.
    """

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
    ) -> None:
        super().__init__()
        here = session()
        if here.model is not None:
            raise UserError(
                "a second smp.DistributedModel; allowed: one per script; fix: put both models into one module"
            )
        if backward_passes_per_step < 1:
            raise UserError(f"backward_passes_per_step = {backward_passes_per_step}; allowed: 1 or more; fix: give one")
        self.module = module
        self.scale = 1 / here.layout.microbatches if average_grads_across_microbatches else 1.0
        self._replicas = (backward_passes_per_step, overlapping_allreduce, broadcast_buffers)
        self._whole: WholePart | None = None
        self._staged: StagedPart | None = None
        self._uneven: Uneven | None = None
        self._comm_hook: Callable[[Any], Any] | None = None
        self._names = tuple(module.state_dict())
        self._trained = False
        self._answer: Any = None
        self._hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self._hooks_called = self._guarded = self._complete = False
        here.model = self
        if here.layout.grid.pp == 1:
            self._whole = WholePart(here, module, *self._replicas)
            here.partition_is_done()

    # -- what the script calls ----------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._answer is not None:
            return self._answer.call(args, kwargs)
        if session().layout.grid.pp == 1:
            return self.module(*args, **kwargs)
        raise UserError(
            "the model is called outside of an @smp.step function; allowed: inside, with more than one partition; "
            "fix: move the call into one"
        )

    def backward(self, tensors: Any, grad_tensors: Any = None) -> None:
        """As torch.autograd.backward, for the loss of this microbatch; the gradients are there when the step is over."""
        if self._answer is None:
            raise UserError("model.backward is called outside of an @smp.step function; fix: move the call into one")
        self._answer.backward(scalar(tensors, grad_tensors))

    @property
    def partitioned(self) -> bool:
        """Whether this rank has its part of the model."""
        return session().partitioned

    def register_post_partition_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls hook(model, optimizer) once the model is partitioned, before the first forward pass."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    def local_named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of this rank, under their names in the whole model."""
        return ((prefix + name, parameter) for name, parameter in self._part().named_parameters())

    def local_parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return (parameter for _, parameter in self.local_named_parameters())

    def local_named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        return ((prefix + name, buffer) for root in self._part().roots() for name, buffer in root.named_buffers())

    def local_buffers(self, recurse: bool = True) -> Iterator[torch.Tensor]:
        return (buffer for _, buffer in self.local_named_buffers())

    def local_named_modules(
        self, memo: Any = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Modules of this rank: those with parameters or buffers that are not elsewhere, and what is in them."""
        own = {id(tensor) for _, tensor in (*self.local_named_parameters(), *self.local_named_buffers())}
        for root in self._part().roots():
            for name, module in root.named_modules():
                if any(id(tensor) in own for tensor in (*module.parameters(), *module.buffers())):
                    yield prefix + name, module

    def local_modules(self) -> Iterator[nn.Module]:
        return (module for _, module in self.local_named_modules())

    def local_state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """This rank's part of the state dict; `_smp_is_partial` says whether there is more elsewhere."""
        return {**self._part().state_dict(), PARTIAL: self._staged is not None}

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The whole model's state dict, under the names of `module`. On all ranks with the same dp_rank."""
        if self._staged is None:
            return dict(self.module.state_dict())
        mine = {name: tensor.detach().to("cpu") for name, tensor in self._staged.state_dict().items()}
        union = self._of_all(mine)
        return {name: union[name] for name in self._names}

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Takes a whole state dict, or the parts of one, each rank its own.

        Where the model is not partitioned yet, the module is loaded as a whole, and cut afterwards.
        """
        state = dict(state_dict)
        if state.pop(PARTIAL, False):
            state = self._of_all(state)
        if self._staged is None:
            return self.module.load_state_dict(state, strict=strict, assign=assign)
        lacking = [name for name in self._staged.state_dict() if name not in state]
        unknown = [name for name in state if name not in self._names]
        if lacking or (strict and unknown):
            fault = f"without {', '.join(lacking[:3])}" if lacking else f"with {', '.join(unknown[:3])}"
            raise UserError(
                f"load_state_dict: a state dict {fault}; allowed: that of this model; fix: load the right one"
            )
        if not self._trained:  # the first training step may cut the module anew
            self.module.load_state_dict(state, strict=False)
        self._staged.pipeline.load_state_dict(state)
        return torch.nn.modules.module._IncompatibleKeys([], [])

    def cpu(self) -> DistributedModel:
        """The module with the weights of all ranks, on the CPU. On all ranks with the same dp_rank."""
        state = self.state_dict()
        self.module.to("cpu")
        self.module.load_state_dict(state)
        self._complete = True
        return self

    @contextlib.contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """Training with different numbers of batches on the replicas; every rank trains inside, in a loop of its own.

        One that has no batch left takes part in the others' steps with gradients of zero, and has their weights
        afterwards. `divide_by_initial_world_size=False` is refused: the mean is over all replicas.
        """
        group = session().axes.dp_group
        if not divide_by_initial_world_size:
            raise UserError("join: divide_by_initial_world_size = False; allowed: True; fix: leave it out")
        if group is None or not enable:
            yield
            return
        self._uneven = uneven = Uneven(group, throw_on_early_termination)
        try:
            yield
            part = self._part()
            uneven.follow(lambda: part.empty_step(uneven))
            part.equalise(uneven.source)
        finally:
            self._uneven = None

    def register_comm_hook(self, state: Any, hook: Callable[[Any, Any], Any]) -> None:
        """hook(state, bucket) reduces a bucket of gradients over the replicas, in the place of the mean.

        As DistributedDataParallel's: `bucket` has buffer(), gradients(), parameters(), index() and is_last(), and the hook
        returns a Future of the buffer's new content. It also has to divide by the microbatches. Torch's ready-made hooks
        take the process group as `state`: smp.get_dp_process_group().
        """
        if session().axes.dp_group is None:
            raise UserError(
                'register_comm_hook: there is one replica; allowed: with "ddp": true and several; fix: drop it'
            )
        if self._comm_hook is not None:
            raise UserError(
                "register_comm_hook: there is one already; allowed: one; fix: register a hook that does both"
            )
        if not self._replicas[1]:
            raise UserError("register_comm_hook: overlapping_allreduce is False; allowed: True; fix: leave it out")
        self._comm_hook = functools.partial(hook, state)
        self.scale = 1.0
        if self._whole or self._staged:
            self._part().hook(self._comm_hook)

    # -- what @smp.step calls -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def answered_by(self, answer: Any) -> Iterator[None]:
        """Calls of the model and of `backward` go to `answer` meanwhile."""
        outer, self._answer = self._answer, answer
        try:
            yield
        finally:
            self._answer = outer

    @property
    def is_last(self) -> bool:
        """Whether this rank has the last stage."""
        return session().axes.pp_rank == session().layout.grid.pp - 1

    def begin_whole(self) -> None:
        """Before a step, with one partition."""
        assert self._whole is not None
        self._call_hooks()
        self._whole.begin(self._uneven)

    def end_whole(self, backwards: int) -> None:
        assert self._whole is not None
        self._whole.end(backwards)

    def fits(self, entries: Sequence[Entry]) -> Fit:
        """How this batch goes through the stages; on the rank with the first one."""
        if self._staged is None:
            return fit(entries, self.module, None, True, {})
        return fit(entries, self.module, self._staged.form, not self._trained, self._staged.alone)

    def partition(self, how: Fit, entry: Entry | None) -> None:
        """Makes this rank's stages, where the fit asks for it. On all ranks of the job."""
        if not how.anew:
            return
        here = session()
        example = here.mesh.from_leader(lambda: entry.on_cpu())  # type: ignore[union-attr]
        self._staged = StagedPart(here, self.module, example, *self._replicas)
        if self._comm_hook:
            self._staged.hook(self._comm_hook)
        self._guard()
        here.partition_is_done()
        self._call_hooks()

    def train_step(self, entries: Sequence[Entry], loss: Callable[[Any, int], torch.Tensor], how: Fit) -> None:
        assert self._staged is not None
        self._trained, self._complete = True, False
        self._staged.train_step(entries, loss, self.scale, self._uneven, how)

    def evaluate(self, entries: Sequence[Entry], use: Use, how: Fit, only: int | None = None) -> list[Any]:
        assert self._staged is not None
        return self._staged.evaluate(entries, use, how, only)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _part(self) -> WholePart | StagedPart:
        part = self._whole or self._staged
        if part is None:
            raise UserError(
                "the model is not partitioned yet; allowed: after the first @smp.step call; "
                "fix: register_post_partition_hook, or ask later"
            )
        return part

    def _of_all(self, mine: dict[str, Any]) -> dict[str, Any]:
        """The union over the ranks of the pipeline."""
        here = session()
        try:
            rows = gathered(mine, here.axes.pp_group, CPU)
        except RuntimeError as error:  # Gloo's: a connection is closed
            raise UserError(
                f"a whole state dict: another rank of this pipeline has ended or failed while rank {here.mesh.rank} asks "
                "for it; allowed: on all ranks with the same dp_rank; fix: call it on every rank and save on rank 0, or "
                "use model.local_state_dict()"
            ) from error
        return {name: value for row in rows for name, value in row.items()}

    def _call_hooks(self) -> None:
        if not self._hooks_called:
            self._hooks_called = True
            for hook in list(self._hooks.values()):
                hook(self, session().optimizer)

    def _guard(self) -> None:
        """From now on the module itself holds this rank's weights only; whoever saves it should know."""
        self._complete = False
        if self._guarded:
            return
        self._guarded = True

        def refuse(module: nn.Module, *_: Any) -> None:
            if not self._complete:
                raise UserError(
                    "model.module.state_dict(): the module holds the weights of this rank's stages only; "
                    "fix: model.state_dict() on all ranks with dp_rank 0, or model.local_state_dict()"
                )

        self.module.register_state_dict_pre_hook(refuse)
