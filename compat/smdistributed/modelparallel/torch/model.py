"""DistributedModel: the script's model, in stages on the ranks of a pipeline, with its replicas."""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from algorun_train.errors import UserError
from smdistributed.script_types import Given, Result

from . import wire
from .calls import Whole, scalar
from .entry import Entry
from .fitting import AGAIN, PLAN, Fit, fit
from .messages import CPU, gathered
from .model_state import ModelState
from .refused import Refusing
from .replicas import Uneven
from .session import session
from .staged_part import StagedPart, Use
from .tensor_parallel import NothingDistributed
from .whole_part import WholePart


class DistributedModel(ModelState, NothingDistributed, Refusing):
    """Holds `module` for @smp.step functions: they call it, and its `backward`.

    The model is cut at the first step, for the shapes seen there; with one partition it is placed at once. Only one per
    script. `trace_device`, `trace_execution_times`, `trace_memory_usage`, `bucket_cap_mb`, `gradient_as_bucket_view` and
    `find_unused_parameters` have no effect: units are profiled on the device that trains, gradients travel in buckets of
    25 MiB, and a parameter that a replica does not use counts as zero there.
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
        self.module = module
        self.scale = 1 / here.layout.microbatches if average_grads_across_microbatches else 1.0
        self._replicas = (backward_passes_per_step, overlapping_allreduce, broadcast_buffers)
        self._uneven: Uneven | None = None
        self._comm_hook: Callable[[Given], Given] | None = None
        self._names = tuple(module.state_dict())
        self._answer: Given = None
        self._hooks: OrderedDict[int, Callable[..., Result]] = OrderedDict()
        self._hooks_called = False
        here.model = self
        if here.layout.grid.pp == 1:
            self._whole = WholePart(here, module, *self._replicas)
            here.partition_is_done()

    # -- what the script calls ----------------------------------------------------------------------------------------

    def forward(self, *args: Given, **kwargs: Given) -> Result:
        if self._answer is not None:
            return self._answer.call(args, kwargs)
        if self._whole is not None:
            self._call_hooks()
            return self.module(*args, **kwargs)
        raise UserError(
            "the model is called outside of an @smp.step function; allowed: inside, with more than one partition; "
            "fix: move the call into one"
        )

    def backward(self, tensors: Given, grad_tensors: Given = None) -> None:
        """As torch.autograd.backward, for the loss of this microbatch; the gradients are there when the step is over.

        With one partition also outside of a step function: then they are reduced when the optimizer uses them.
        """
        if self._answer is not None:
            self._answer.backward(scalar(tensors, grad_tensors))
        elif self._whole is not None:
            scalar(tensors, grad_tensors).backward()
        else:
            raise UserError(
                "model.backward is called outside of an @smp.step function; allowed: inside, with more than one "
                "partition; fix: move the call into one"
            )

    @property
    def partitioned(self) -> bool:
        """Whether this rank has its part of the model."""
        return session().partitioned

    def register_post_partition_hook(self, hook: Callable[..., Result]) -> RemovableHandle:
        """Calls hook(model, optimizer) once the model is partitioned, before the first forward pass."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

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
        group = session().axes.dp_group
        if group is None or not enable:
            yield
            return
        self._uneven = uneven = Uneven(group, throw_on_early_termination, divide_by_initial_world_size)
        try:
            yield
            part = self._part()
            uneven.follow(lambda what: part.empty(uneven, what))
            part.equalise(uneven.source)
        finally:
            self._uneven = None

    def register_comm_hook(self, state: Given, hook: Callable[[Given, Given], Given]) -> None:
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

    _register_comm_hook = register_comm_hook  # its older name

    # -- what @smp.step calls -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def answered_by(self, answer: Given) -> Iterator[None]:
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

    @contextlib.contextmanager
    def whole_step(self) -> Iterator[Whole]:
        """A step with one partition; yields what calls of the model in it mean."""
        part = self._whole
        assert part is not None
        self._call_hooks()
        if self.module.training and torch.is_grad_enabled():
            part.begin(self._uneven)
        answer = Whole(self.module, self.scale, part.counted)
        with part.microbatches(self.scale):
            yield answer
        part.end(answer.backwards)

    def before_use(
        self, parameters: Iterable[torch.Tensor], optimizer: torch.optim.Optimizer | None = None, steps: bool = False
    ) -> None:
        """The gradients of `parameters` are used now, by `optimizer` where one is given: they have to be reduced.

        Called on all replicas. `steps`: the optimizer makes its step, after which they are used up.
        """
        if self._whole is None or not self._whole.holds(parameters):
            return
        self._whole.before_use(optimizer, self._uneven)
        if steps and optimizer is not None:
            self._whole.stepped(optimizer)

    def fits(self, entries: Sequence[Entry], trains: bool, plans: bool = True) -> Fit:
        """How this batch goes through the stages; on the rank with the first one. `trains`: it may be training."""
        made = self._staged.forms if self._staged else ()
        return fit(entries, self.module, made, trains, plans=plans and self._plans())

    def agreed_on_plan(self, how: Fit) -> Fit:
        """A new plan is made by all pipelines, or by none."""
        here = session()
        if self._staged is None or not self._plans() or here.axes.dp_group is None:
            return how
        rows = gathered(how.cut == PLAN, here.axes.dp_group, CPU, "the first training step")
        return Fit(cut=PLAN) if any(rows) else how

    def _plans(self) -> bool:
        """Whether stages may still be planned anew: the first step that may train has the say, an evaluation before has not."""
        first = not self._trained and torch.is_grad_enabled() and self._uneven is None
        return self._staged is None or first

    def partition(self, how: Fit, entry: Entry | None) -> None:
        """Makes this rank's stages, as the fit asks for it: on all ranks of the job, or of this pipeline.

        `entry` is that of the rank with the first stage. A plan is made for rank 0's, which may be another form.
        """
        here = session()
        if how.cut == AGAIN:
            assert self._staged is not None
            self._staged.forms.add(wire.share(entry, 0).on_cpu())
            return
        if self._staged:
            self._staged.gradients.release()
        example = here.comm.from_leader(lambda: entry.on_cpu())  # type: ignore[union-attr]
        self._staged = StagedPart(here, self.module, example, *self._replicas)
        if self._comm_hook:
            self._staged.hook(self._comm_hook)
        self._guard()
        here.partition_is_done()
        self._call_hooks()

    def train_step(self, entries: Sequence[Entry], loss: Callable[[Given, int], torch.Tensor], how: Fit) -> None:
        assert self._staged is not None
        self._trained, self._complete = True, False
        self._staged.begin(self._uneven)
        self._staged.train_step(entries, loss, self.scale, how)

    def evaluate(self, entries: Sequence[Entry], use: Use, how: Fit, only: int | None = None) -> list[Result]:
        assert self._staged is not None
        return self._staged.evaluate(entries, use, how, only)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _call_hooks(self) -> None:
        if not self._hooks_called:
            self._hooks_called = True
            for hook in list(self._hooks.values()):
                hook(self, session().optimizer)
