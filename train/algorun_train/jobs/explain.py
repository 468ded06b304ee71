"""Option --explain: measures the schedule in one early step and the memory in the next, and compares both with the plan."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from algorun_train.common.files import write_text
from algorun_train.data.batch import Batch
from algorun_train.loop.pipeline_steps import PipelineSteps
from algorun_train.parallel import draw, schedules
from algorun_train.parallel.layout.layout import Layout
from algorun_train.parallel.partition.costs import Partition
from algorun_train.parallel.run.live_memory import peak_bytes
from algorun_train.parallel.schedules import Span, Timeline

TIMED_STEP = 4  # of the run, from 1; earlier steps allocate buffers
MEMORY_STEP = 5  # after the timed step: counting autograd's tensors takes time
SVG, TRACE = "schedule.svg", "schedule-trace.json"
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
        layout, partition = self._layout, self._partition
        measured = Timeline(tuple(tuple(spans) for spans in rows))
        pictures = [(f"measured, step {number}", measured)]
        if partition is not None:
            orders = schedules.orders(layout.schedule, layout.grid.pp, layout.chunks, layout.microbatches)
            pictures.insert(0, ("planned", schedules.simulate(orders, partition.forward_s, partition.backward_s)))
        title = f"{layout.schedule}, {layout.grid.pp} ranks, {layout.microbatches} microbatches"
        write_text(self._folder / SVG, draw.svg(title, pictures))
        write_text(self._folder / TRACE, draw.chrome_trace(measured))
        self._comm.say(
            f"schedule: measured step {measured.step_s * 1e3:.1f} ms, bubble {measured.bubble:.1%}; "
            f"{self._folder / SVG} and {self._folder / TRACE}"
        )

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
