"""Forward and backward of all microbatches through this rank's stages, in the order of the schedule."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from algorun_train.parallel.model.segments import TensorSpec

from . import torch_schedules
from .options import RunOptions
from .process_groups import Axes
from .stage import FirstStage, Stage
from .torch_schedules import RecordedStage, Recorder

# What torch's schedules carry to the first stage instead of its inputs: the number of the microbatch.
NUMBER = (TensorSpec((1,), torch.int64),)
LossOf = Callable[[Any, int], torch.Tensor]  # Any: the model's output, of the user's own type


class TrainingPasses:
    """Runs torch's schedule; with one rank per pipeline, microbatch after microbatch. Made and run on all its ranks."""

    def __init__(
        self,
        stages: Mapping[int, Stage],
        boundaries: Sequence[Sequence[TensorSpec]],
        axes: Axes,
        options: RunOptions,
        recorder: Recorder,
    ) -> None:
        """`stages` are this rank's, by number. `boundaries` are what enters each stage, and last the model's output."""
        self._stages, self._microbatches, self._device = stages, options.microbatches, axes.device
        self._recorder, self._last = recorder, len(boundaries) - 2
        self._first = FirstStage(stages[0]) if 0 in stages else None
        self._scale = 1.0
        self._losses: list[torch.Tensor] = []
        self._loss_of: LossOf | None = None
        self._torch_stages: list[RecordedStage] = []
        self._step: Callable[..., object] | None = None
        if axes.grid.pp > 1:
            self._torch_stages = [
                RecordedStage(
                    recorder, stage.backward_begins, stage if index else self._first, index, len(boundaries) - 1, axes.device,
                    input_args=torch_schedules.tensors(boundaries[index] if index else NUMBER, gradients=index > 0),
                    output_args=torch_schedules.tensors(boundaries[index + 1], gradients=True),
                    group=axes.pp_group,
                )
                for index, stage in stages.items()
            ]  # fmt: skip
            schedule = torch_schedules.schedule(
                options.schedule, self._torch_stages, options.microbatches, self._scaled_loss
            )
            quiet = "return_outputs" in inspect.signature(type(schedule).step).parameters
            self._step = functools.partial(schedule.step, return_outputs=False) if quiet else schedule.step

    def run(self, microbatches: Sequence[Sequence[torch.Tensor]], loss: LossOf, scale: float) -> torch.Tensor:
        """One step's passes; see `Pipeline.run`. Returns the sum of the unscaled losses; 0 without the last stage."""
        self._scale, self._losses, self._loss_of = scale, [], loss
        if self._first is not None:
            self._first.microbatches = microbatches
        if self._step is None:
            self._accumulate()
        else:
            numbers = torch.arange(self._microbatches)
            arguments = (numbers,) if self._first is not None else ()
            target = {"target": numbers} if self._last in self._stages else {}
            self._step(*arguments, **target)
        return torch.stack(self._losses).sum() if self._losses else torch.zeros((), device=self._device)

    def receive_buffers(self) -> list[torch.Tensor]:
        """The buffers that this rank's stages receive into, once there was a step."""
        return [buffer for stage in self._torch_stages for buffer in stage.receive_buffers()]

    def _accumulate(self) -> None:
        for number in range(self._microbatches):
            loss = self._recorder.run("F", 0, number, functools.partial(self._forward, number))
            for stage in self._stages.values():
                stage.backward_begins()
            self._recorder.run("B", 0, number, loss.backward)

    def _forward(self, number: int) -> torch.Tensor:
        assert self._first is not None
        output: torch.Tensor | Sequence[torch.Tensor] = self._first.microbatches[number]
        for stage in self._stages.values():
            output = stage(*(output if isinstance(output, (tuple, list)) else (output,)))
        return self._scaled_loss(output, number)

    def _scaled_loss(self, output: torch.Tensor | Sequence[torch.Tensor], number: torch.Tensor | int) -> torch.Tensor:
        assert self._loss_of is not None
        loss = self._loss_of(self._stages[self._last].as_returned(output), int(number))
        self._losses.append(loss.detach())
        return loss * self._scale
