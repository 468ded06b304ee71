"""Trains a model whose stages lie on several ranks, as if it lay on one: Pipeline.step is forward and backward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..errors import UserError
from ..layout import SPLIT_BACKWARD, check_recompute
from . import schedule as schedules
from . import torch_schedules
from .axes import Axes
from .cutting import Cutting, TensorSpec
from .reduce import GradientSum
from .stage import FirstStage, Stage
from .torch_schedules import Loss, RecordedStage, Recorder, Span

# What torch's schedules carry to the first stage instead of its inputs: the number of the microbatch.
NUMBER = (TensorSpec((1,), torch.int64),)


class Pipeline:
    """The stages of this rank and the schedule that all ranks of its pipeline run together.

    `begins` holds the segment at which each stage begins (`partition.solve`). A rank of P carries the stages that the
    schedule gives it. `loss(output, target)` is of one microbatch, on the last stage (None: `run` has its own). With one
    rank per pipeline the microbatches are passes of plain accumulation. `entries` are what enters each segment and the
    output, where the device's own types (`profiling.entries`) are others than those that the cutting has seen. `mean`:
    gradients are the mean over replicas instead of their sum, so that those of several steps may add up.
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
    ) -> None:
        self.axes, self._loss, self._microbatches = axes, loss, microbatches
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
                cutting.stage(begins[index], ends[index]), specs[index + 1], device.type, autocast, recompute
            ).to(device)
            for index in self.indices
        }
        self.is_first, self.is_last = 0 in self.modules, stages - 1 in self.modules
        self.recorder = Recorder(device)
        self._specs, self._stages = specs, stages
        self._holder = {
            index: rank for rank in range(ranks) for index in schedules.stages_of(schedule, ranks, rank, chunks)
        }
        self._local: list[tuple[torch.Tensor, ...]] = []  # from one stage of this rank to the next one, in evaluations
        self._scale = 1.0
        self._losses: list[torch.Tensor] = []
        self._loss_of: Callable[[Any, int], torch.Tensor] | None = None
        self._schedule: Any = None
        self._first = FirstStage(self.modules[0]) if self.is_first else None
        if ranks > 1:
            held = [
                RecordedStage(
                    self.recorder, module if index else self._first, index, stages, device,
                    input_args=torch_schedules.tensors(specs[index] if index else NUMBER, gradients=index > 0),
                    output_args=torch_schedules.tensors(specs[index + 1], gradients=True),
                    group=axes.pp_group,
                )
                for index, module in self.modules.items()
            ]  # fmt: skip
            self._schedule = torch_schedules.schedule(schedule, held, microbatches, self._scaled_loss)
        self._passes = None if schedule in SPLIT_BACKWARD and ranks > 1 else microbatches
        self._sum = GradientSum(self.parameters(), axes.dp_group, self._passes, mean=mean)
        quiet = "return_outputs" in inspect.signature(type(self._schedule).step).parameters if self._schedule else False
        self._quiet = {"return_outputs": False} if quiet else {}

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters of this rank under the names that they have in the whole model."""
        for module in self.modules.values():
            yield from module.module.named_parameters()

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of this rank, for an optimizer."""
        return (parameter for _, parameter in self.named_parameters())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers of this rank, under their names in the whole model."""
        return {name: tensor for module in self.modules.values() for name, tensor in module.module.state_dict().items()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Takes from a whole model's state dict what this rank holds. KeyError for a name that is not there."""
        for module in self.modules.values():
            own = module.module.state_dict()
            # Not strict: a BatchNorm of another stage puts its counter into a state dict without versions.
            module.module.load_state_dict({name: state[name] for name in own}, strict=False)

    def train(self) -> None:
        for module in self.modules.values():
            module.train()

    def eval(self) -> None:
        for module in self.modules.values():
            module.eval()

    def step(self, inputs: torch.Tensor, targets: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        """Forward and backward over one batch [B, ..]; gradients are then equal on all replicas.

        The same batch goes to all ranks of a pipeline; B is the microbatches times the microbatch size, always.
        Gradients are those of `scale` times the sum of the microbatches' losses over all replicas; by default their
        mean. Returns the sum of the unscaled losses of this replica, on the ranks with the last stage; 0 elsewhere.
        """
        self._check(inputs)
        loss = self._loss
        assert loss is not None
        labels = targets.chunk(self._microbatches)
        parts = [(part,) for part in inputs.chunk(self._microbatches)]
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
        self, inputs: torch.Tensor, targets: torch.Tensor, score: Callable[[Any, torch.Tensor], torch.Tensor]
    ) -> torch.Tensor | None:
        """The sum of score(output, target) over the microbatches; None on ranks without the last stage."""
        self._check(inputs)
        labels = targets.chunk(self._microbatches)
        parts = [(part,) for part in inputs.chunk(self._microbatches)]
        scores = self.forward(parts, lambda output, number: score(output, labels[number]))
        return torch.stack(scores).sum(0) if scores else None

    def forward(self, parts: Sequence[Sequence[torch.Tensor]], use: Callable[[Any, int], Any]) -> list[Any]:
        """use(output, i) of each microbatch, on the rank with the last stage; elsewhere nothing. `parts` as in `run`, of
        any number, but that number on all ranks.

        Forward passes only, stage by stage; torch's schedules cannot do that where two neighbours lie on one rank
        ("can't steal_bwd_input"), and prepare all stages anew at each change between training and evaluation.
        """
        results, sent = [], []
        with torch.no_grad():
            for index in self.indices:
                inner = 0 < index < self._stages - 1
                back = inner and self._holder[index - 1] == self._holder[index + 1]
                late = []
                for number, part in enumerate(parts):
                    output = self.modules[index](*(part if index == 0 else self._received(index)))
                    if index == self._stages - 1:
                        results.append(use(self.modules[index].whole(output), number))
                        continue
                    tensors = output if isinstance(output, tuple) else (output,)
                    if back:  # NCCL moves what two ranks exchange in one order, and that rank still sends
                        late.append(tensors)
                    else:
                        sent += self._send(index, tensors)
                for tensors in late:
                    sent += self._send(index, tensors)
        for work in sent:
            work.wait()
        return results

    def _received(self, index: int) -> tuple[torch.Tensor, ...]:
        """What stage `index` gets from the one before it."""
        source = self._holder[index - 1]
        if source == self.axes.pp_rank:
            return self._local.pop(0)
        tensors = tuple(torch.empty(s.shape, dtype=s.dtype, device=self.axes.device) for s in self._specs[index])
        for tensor in tensors:
            dist.recv(tensor, group=self.axes.pp_group, group_src=source)
        return tensors

    def _send(self, index: int, tensors: tuple[torch.Tensor, ...]) -> list[dist.Work]:
        to = self._holder[index + 1]
        if to == self.axes.pp_rank:
            self._local.append(tensors)
            return []
        works = [dist.isend(tensor.contiguous(), group=self.axes.pp_group, group_dst=to) for tensor in tensors]
        return [work for work in works if work is not None]

    def everywhere(self, loss: torch.Tensor) -> torch.Tensor:
        """What `step` has returned, on all ranks of this pipeline."""
        if self.axes.pp_group is not None:
            loss = loss.detach().clone()
            dist.all_reduce(loss, group=self.axes.pp_group)
        return loss

    def clip(self, norm: float) -> torch.Tensor:
        """Scales all gradients of the pipeline so that their norm is at most `norm`; returns the norm before.

        torch's clip_grad_norm_ sees one rank's gradients; the squares are summed over the stages here.
        """
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        squares = torch.zeros((), device=self.axes.device, dtype=torch.float64)
        if gradients:
            squares = torch.stack(torch._foreach_norm(gradients)).double().square().sum()
        if self.axes.pp_group is not None:
            dist.all_reduce(squares, group=self.axes.pp_group)
        total = squares.sqrt()
        factor = (norm / (total + 1e-6)).clamp(max=1.0).float()  # as torch's own
        torch._foreach_mul_(gradients, factor)
        return total

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

    def _check(self, inputs: torch.Tensor) -> None:
        """Shapes must not change: gloo takes a short message into the larger buffer, and stale rows stay."""
        wanted = (self._specs[0][0].shape[0] * self._microbatches, *self._specs[0][0].shape[1:])
        if tuple(inputs.shape) != wanted:
            raise UserError(
                f"a batch of shape {list(inputs.shape)}; allowed: {list(wanted)}, that is {self._microbatches} "
                f"microbatches of {self._specs[0][0].shape[0]}; fix: pad the last batch, or leave it out"
            )
