"""Option --explain: measures the schedule in one early step and the memory in the next, and compares both with the plan."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from algorun_train.data.batch import Batch
from algorun_train.loop.pipeline_steps import PipelineSteps
from algorun_train.parallel import draw
from algorun_train.parallel.draw.measured import SVG, TIMED_STEP, write_schedule
from algorun_train.parallel.layout.layout import Layout
from algorun_train.parallel.partition.costs import Partition
from algorun_train.parallel.run.live_memory import peak_bytes
from algorun_train.parallel.schedules import Span

MEMORY_STEP = 5  # after the timed step: counting autograd's tensors takes time
MIB = 2**20


class ExplainedSteps:
    """A stepper that calls another stepper and measures two of its steps, at the same time on all ranks."""

    def __init__(
        self,
        stepper: PipelineSteps,
        layout: Layout,
        partition: Partition | None,
        folder: Path,
        recompute: bool = False,
    ) -> None:
        """`partition` has the planned costs; None if nothing was planned. Rank 0 draws the measured step into `folder`."""
        self._stepper, self._layout, self._partition, self._folder = stepper, layout, partition, folder
        self._comm, self._recompute = stepper.comm, recompute
        self._count = itertools.count(1)

    def finish(self) -> None:
        """Prints a line if the run was too short to be measured."""
        if next(self._count) <= TIMED_STEP:
            self._comm.say(f"schedule: not measured, no {SVG}: the run made fewer than {TIMED_STEP} steps")

    def train(self) -> None:
        self._stepper.train()

    def eval(self) -> None:
        self._stepper.eval()

    def evaluate(self, batch: Batch) -> torch.Tensor:
        return self._stepper.evaluate(batch)

    def step(self, batches: Sequence[Batch], total: int, rate: float, number: int) -> torch.Tensor:
        """See `Stepper`."""
        turn = next(self._count)
        if turn == TIMED_STEP:
            return self._measure_time(batches, total, rate, number)
        if turn == MEMORY_STEP:
            return self._measure_memory(batches, total, rate, number)
        return self._stepper.step(batches, total, rate, number)

    def _measure_time(self, batches: Sequence[Batch], total: int, rate: float, number: int) -> torch.Tensor:
        pipeline = self._stepper.pipeline
        if self._comm.world.distributed:
            dist.barrier(group=pipeline.axes.pp_group)  # the common zero of time: hosts have different clocks
        pipeline.recorder.start()
        losses = self._stepper.step(batches, total, rate, number)
        rows = self._comm.gather(pipeline.recorder.stop())
        if self._comm.is_leader:
            self._draw([rows[rank] for rank in self._layout.grid.pipelines[0]], number)
        return losses

    def _draw(self, rows: Sequence[Sequence[Span]], number: int) -> None:
        partition = self._partition
        planned = (partition.forward_s, partition.backward_s) if partition is not None else None
        self._comm.say(write_schedule(self._folder, self._layout.shape, rows, number, planned))

    def _measure_memory(self, batches: Sequence[Batch], total: int, rate: float, number: int) -> torch.Tensor:
        pipeline, device = self._stepper.pipeline, self._comm.device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            losses = self._stepper.step(batches, total, rate, number)
            measured = torch.cuda.max_memory_allocated(device)
        else:
            losses, held = peak_bytes(pipeline, lambda: self._stepper.step(batches, total, rate, number))
            measured = self._states() + held
        rows = self._comm.gather(measured)
        partition = self._partition
        if partition is not None:
            ranks = [rows[rank] for rank in self._layout.grid.pipelines[0]]
            every = "weights, gradients, moments, what autograd keeps, receive buffers"
            if self._recompute:  # it happens inside autograd, where nothing counts it
                every += "; not what is computed again in the backward pass, which the plan has"
            counted = "the device's peak" if device.type == "cuda" else every
            self._comm.say(
                f"memory: planned against measured ({counted})\n" + draw.memory_text(partition.rank_bytes, ranks)
            )
        return losses

    def _states(self) -> int:
        """Bytes of weights, gradients and optimizer state."""
        optimizer = self._stepper.optimizer
        weights = [p for p in self._stepper.pipeline.parameters() if p.requires_grad]
        kept = [value for p in weights for value in optimizer.state[p].values() if isinstance(value, torch.Tensor)]
        return sum(t.numel() * t.element_size() for t in [*weights, *weights, *kept])
