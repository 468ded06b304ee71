"""Trains a model whose stages lie on several ranks, as if it lay on one: Pipeline.step is forward and backward."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from algorun_train.options.pipeline_layout import SPLIT_BACKWARD, check_recompute
from algorun_train.parallel import schedules
from algorun_train.parallel.segments import Cutting, TensorSpec
from algorun_train.parallel.stage import FirstStage, Stage

from . import torch_schedules
from .forward import ForwardPasses
from .gradient_sum import GradientSum
from .microbatches import in_microbatches
from .process_groups import Axes
from .shared_weights import Ties, shared_weights
from .torch_schedules import Loss, RecordedStage, Recorder, Span

# What torch's schedules carry to the first stage instead of its inputs: the number of the microbatch.
NUMBER = (TensorSpec((1,), torch.int64),)


class Pipeline:
    """The stages of this rank and the schedule that all ranks of its pipeline run together.

    `begins` holds the segment at which each stage begins (`partition.solve`). A rank of P carries the stages that the
    schedule gives it. `loss(output, target)` is of one microbatch, on the last stage (None: `run` has its own). With one
    rank per pipeline the microbatches are passes of plain accumulation. `entries` are what enters each segment and the
    output, where the device's own types (`profiling.entries`) are others than those that the cutting has seen. `mean`:
    gradients are the mean over replicas instead of their sum, so that those of several steps may add up. `beside` is a
    pipeline of the same weights for inputs of another form: this one has its parameters, buffers and their reduction.
    """

    def __init__(
        self,
        cutting: Cutting,
        begins: Sequence[int],
        axes: Axes,
        loss: Loss | None,
        *,
        microbatches: int,
        schedule: str = "1f1b",
        autocast: torch.dtype | None = None,
        recompute: bool = False,
        entries: Sequence[Sequence[TensorSpec]] | None = None,
        mean: bool = False,
        beside: Pipeline | None = None,
    ) -> None:
        self.axes, self.autocast, self._loss, self._microbatches = axes, autocast, loss, microbatches
        stages, ranks = len(begins), axes.grid.pp
        if recompute:
            check_recompute(schedule)
        ends = [*begins[1:], len(cutting.segments)]
        crossing = entries or [*(segment.entry for segment in cutting.segments), cutting.output]
        specs = [crossing[begin] for begin in begins] + [crossing[-1]]
        chunks = stages // ranks
        self.indices = schedules.stages_of(schedule, ranks, axes.pp_rank, chunks) if ranks > 1 else range(stages)
        device = axes.device
        self.modules = {
            index: Stage(
                cutting.stage(begins[index], ends[index]),
                specs[index + 1],
                device.type,
                autocast,
                recompute,
                sends=index < stages - 1,
            ).to(device)
            for index in self.indices
        }
        self.is_first, self.is_last = 0 in self.modules, stages - 1 in self.modules
        self.recorder = Recorder(device)
        self._specs, self._stages = specs, stages
        holder = {index: rank for rank in range(ranks) for index in schedules.stages_of(schedule, ranks, rank, chunks)}
        self._evaluation = ForwardPasses(self.modules, holder, specs, axes)
        self._scale = 1.0
        self._losses: list[torch.Tensor] = []
        self._loss_of: Callable[[Any, int], torch.Tensor] | None = None
        self._schedule: Any = None
        self._first = FirstStage(self.modules[0]) if self.is_first else None
        self._held: list[RecordedStage] = []
        if ranks > 1:
            self._held = [
                RecordedStage(
                    self.recorder, module if index else self._first, index, stages, device,
                    input_args=torch_schedules.tensors(specs[index] if index else NUMBER, gradients=index > 0),
                    output_args=torch_schedules.tensors(specs[index + 1], gradients=True),
                    group=axes.pp_group,
                )
                for index, module in self.modules.items()
            ]  # fmt: skip
            self._schedule = torch_schedules.schedule(schedule, self._held, microbatches, self._scaled_loss)
        self._passes = None if schedule in SPLIT_BACKWARD and ranks > 1 else microbatches
        if beside is None:
            self._shared, weights = shared_weights(cutting, begins), dict(self.named_parameters())
            self.ties = Ties(self._shared, holder, axes, weights)
            several = {each.name: sum(stage in self.modules for stage in each.stages) for each in self._shared}
            times = {weights[name]: count for name, count in several.items() if ranks > 1 and count > 1}
            self._sum = GradientSum(
                self.parameters(), axes.dp_group, self._passes, mean=mean, times=times, ties=self.ties
            )
        else:
            self._shared, self.ties, self._sum = beside._shared, beside.ties, beside._sum
            self.take_buffers(beside)
        quiet = "return_outputs" in inspect.signature(type(self._schedule).step).parameters if self._schedule else False
        self._quiet = {"return_outputs": False} if quiet else {}

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters of this rank, each once, under the names that they have in the whole model."""
        seen = set()
        for module in self.modules.values():
            for name, parameter in module.module.named_parameters():
                if parameter not in seen:
                    seen.add(parameter)
                    yield name, parameter

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of this rank, for an optimizer."""
        return (parameter for _, parameter in self.named_parameters())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers of this rank, under their names in the whole model."""
        return {name: tensor for module in self.modules.values() for name, tensor in module.module.state_dict().items()}

    def copied(self, index: int) -> set[str]:
        """The names in the state dict of stage `index` of weights that an earlier stage has too, and saves."""
        module = self.modules[index].module
        named = dict(module.named_parameters())
        copies = {named[each.name] for each in self._shared if index in each.stages[1:]}
        return {name for name, weight in module.named_parameters(remove_duplicate=False) if weight in copies}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Takes from a whole model's state dict what this rank holds. KeyError for a name that is not there."""
        for module in self.modules.values():
            own = module.module.state_dict()
            # Not strict: a BatchNorm of another stage puts its counter into a state dict without versions.
            module.module.load_state_dict({name: state[name] for name in own}, strict=False)

    def take_buffers(self, other: Pipeline) -> None:
        """The buffers of a pipeline of the same stages, as they are and may be changed, in the place of its own."""
        for index, stage in self.modules.items():
            theirs = dict(other.modules[index].module.named_buffers(remove_duplicate=False))
            for prefix, module in stage.module.named_modules():
                for name in module._buffers:
                    found = theirs.get(f"{prefix}.{name}".lstrip("."))
                    if found is not None:
                        module._buffers[name] = found

    def receive_buffers(self) -> list[torch.Tensor]:
        """The buffers that this rank's stages receive into, once there was a step."""
        return [buffer for stage in self._held for buffer in stage.receive_buffers()]

    def train(self) -> None:
        for module in self.modules.values():
            module.train()

    def eval(self) -> None:
        for module in self.modules.values():
            module.eval()

    def step(self, inputs: Any, targets: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        """Forward and backward over one batch; gradients are then equal on all replicas.

        `inputs` has the form of the example that the model was cut with: a tensor [B, ..], a tuple or a dict of them, whose
        example was in the order of its names (`trees.in_order`).

        The same batch goes to all ranks of a pipeline; B is the microbatches times the microbatch size, always.
        Gradients are those of `scale` times the sum of the microbatches' losses over all replicas; by default their
        mean. Returns the sum of the unscaled losses of this replica, on the ranks with the last stage; 0 elsewhere.
        """
        loss = self._loss
        assert loss is not None
        parts, labels = in_microbatches(inputs, targets, self._specs[0], self._microbatches)
        scale = 1 / (self._microbatches * self.axes.grid.dp) if scale is None else scale
        return self.run(parts, lambda output, number: loss(output, labels[number]), scale)

    def run(
        self,
        parts: Sequence[Sequence[torch.Tensor]],
        loss: Callable[[Any, int], torch.Tensor],
        scale: float,
        reduce: bool = True,
    ) -> torch.Tensor:
        """Forward and backward over microbatches: the general form of `step`.

        `parts[i]` holds the tensors among the model's arguments of microbatch i, needed on the rank with the first
        stage; `loss(output, i)` is called on the rank with the last one, in the order of i. Returns as `step` does. Without `reduce` (after
        `overlap(False)`) gradients stay this replica's own, for a later step to add to and reduce.
        """
        self._scale, self._losses, self._loss_of = scale, [], loss
        self.ties.begin()
        if self._first:
            self._first.parts = parts
        if self._schedule is None:
            self._accumulate()
        else:
            numbers = torch.arange(self._microbatches)
            arguments, target = (numbers,) if self.is_first else (), {"target": numbers} if self.is_last else {}
            self._schedule.step(*arguments, **target, **self._quiet)
        if reduce:
            self._sum.finish()
        return self._total()

    @property
    def gradients(self) -> GradientSum:
        """What reduces this rank's gradients over the replicas."""
        return self._sum

    def overlap(self, wished: bool) -> None:
        """Whether gradients travel to the other replicas while the last backward pass still runs; on by default."""
        self._sum.passes = self._passes if wished else None

    def evaluate(
        self, inputs: Any, targets: torch.Tensor, score: Callable[[Any, torch.Tensor], torch.Tensor]
    ) -> torch.Tensor | None:
        """The sum of score(output, target) over the microbatches; None on ranks without the last stage."""
        parts, labels = in_microbatches(inputs, targets, self._specs[0], self._microbatches)
        scores = self.forward(parts, lambda output, number: score(output, labels[number]), self.autocast)
        return torch.stack(scores).sum(0) if scores else None

    def forward(
        self, parts: Sequence[Sequence[torch.Tensor]], use: Callable[[Any, int], Any], autocast: torch.dtype | None
    ) -> list[Any]:
        """use(output, i) of each microbatch, on the rank with the last stage; elsewhere nothing. `parts` as in `run`, of
        any number, but that number on all ranks. `autocast` is what the stages compute under (None: nothing), the same
        on all ranks; it may be another one than that of training."""
        return self._evaluation.run(parts, use, autocast, told=autocast != self.autocast)

    def everywhere(self, loss: torch.Tensor) -> torch.Tensor:
        """What `step` has returned, on all ranks of this pipeline."""
        if self.axes.pp_group is not None:
            loss = loss.detach().clone()
            dist.all_reduce(loss, group=self.axes.pp_group)
        return loss

    def clip(self, norm: float) -> torch.Tensor:
        """Scales all gradients of the pipeline so that their norm is at most `norm`; returns the norm before."""
        total = self.norm(self.parameters())
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        factor = (norm / (total + 1e-6)).clamp(max=1.0).float()  # as torch's own
        torch._foreach_mul_(gradients, factor)
        return total

    def norm(self, parameters: Iterable[torch.Tensor], order: float = 2.0) -> torch.Tensor:
        """The norm (float64) of the gradients of the parameters that all ranks of the pipeline give, those of a weight
        with copies once: torch's own functions see one rank's gradients."""
        largest = math.isinf(order)
        gradients = [p.grad for p in self.ties.counted(parameters) if p.grad is not None]
        total = torch.zeros((), device=self.axes.device, dtype=torch.float64)
        if gradients:
            norms = torch.stack([each.double() for each in torch._foreach_norm(gradients, order)])
            total = norms.max() if largest else norms.pow(order).sum()
        if self.axes.pp_group is not None:
            dist.all_reduce(total, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group=self.axes.pp_group)
        return total if largest else total.pow(1 / order)

    def spans(self) -> tuple[Span, ...]:
        """What was recorded since recorder.start()."""
        return self.recorder.stop()

    def _accumulate(self) -> None:
        for number in range(self._microbatches):
            loss = self.recorder.run("F", 0, number, lambda number=number: self._forward(number))
            self.recorder.run("B", 0, number, loss.backward)

    def _forward(self, number: int) -> torch.Tensor:
        assert self._first is not None
        output: Any = self._first.parts[number]
        for index in self.indices:
            output = self.modules[index](*(output if isinstance(output, (tuple, list)) else (output,)))
        return self._scaled_loss(output, number)

    def _scaled_loss(self, output: Any, number: Any) -> torch.Tensor:
        assert self._loss_of is not None
        loss = self._loss_of(self.modules[self._stages - 1].whole(output), int(number))
        self._losses.append(loss.detach())
        return loss * self._scale

    def _total(self) -> torch.Tensor:
        return torch.stack(self._losses).sum() if self._losses else torch.zeros((), device=self.axes.device)
