"""The measured schedule of a pipeline: timed in one early step, drawn beside the planned one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from algorun_train.data.batch import Batch
from algorun_train.files import write_text
from algorun_train.loop.pipeline_steps import Staged
from algorun_train.options.layout import Layout
from algorun_train.parallel import draw, schedules
from algorun_train.parallel.partition.partitioner import Decision
from algorun_train.parallel.run.live_memory import weighed
from algorun_train.parallel.schedules import Span, Timeline
from algorun_train.ranks.communicator import Communicator

TIMED_STEP = 4  # of a run: the first ones allocate, and lay out buffers anew
WEIGHED_STEP = 5  # on its own: counting what autograd keeps costs time
SVG, TRACE = "schedule.svg", "schedule-trace.json"
MIB = 2**20


class Explained:
    """A stepper that measures two of its steps. All ranks make them at the same time."""

    def __init__(
        self,
        stepper: Staged,
        layout: Layout,
        decision: Decision | None,
        folder: Path,
        comm: Communicator,
        say: Callable[[object], None],
        recompute: bool = False,
    ) -> None:
        self._stepper, self._layout, self._decision, self._folder = stepper, layout, decision, folder
        self._comm, self._say, self._recompute = comm, say, recompute
        self._count = itertools.count(1)

    def finish(self) -> None:
        """Says so where the run was too short for a picture."""
        if next(self._count) <= TIMED_STEP:
            self._say(f"schedule: not measured, no {SVG}: the run made fewer than {TIMED_STEP} steps")

    def train(self) -> None:
        self._stepper.train()

    def eval(self) -> None:
        self._stepper.eval()

    def evaluate(self, batch: Batch) -> torch.Tensor:
        return self._stepper.evaluate(batch)

    def step(self, batches: Sequence[Batch], total: int, rate: float, number: int) -> torch.Tensor:
        """A step of the stepper's."""
        turn = next(self._count)
        if turn == TIMED_STEP:
            return self._timed(batches, total, rate, number)
        if turn == WEIGHED_STEP:
            return self._weighed(batches, total, rate, number)
        return self._stepper.step(batches, total, rate, number)

    def _timed(self, batches: Sequence[Batch], total: int, rate: float, number: int) -> torch.Tensor:
        pipeline = self._stepper.pipeline
        if self._comm.world.distributed:
            dist.barrier(group=pipeline.axes.pp_group)  # zero of all ranks' clocks, which different hosts do not share
        pipeline.recorder.start()
        losses = self._stepper.step(batches, total, rate, number)
        rows = self._comm.gather(pipeline.recorder.stop())
        if self._comm.is_leader:
            self._draw([rows[rank] for rank in self._layout.grid.pipelines[0]], number)
        return losses

    def _draw(self, rows: Sequence[Sequence[Span]], number: int) -> None:
        layout, decision = self._layout, self._decision
        measured = Timeline(tuple(tuple(spans) for spans in rows))
        pictures = [(f"measured, step {number}", measured)]
        if decision is not None:
            orders = schedules.orders(layout.schedule, layout.grid.pp, layout.chunks, layout.microbatches)
            pictures.insert(0, ("planned", schedules.simulate(orders, decision.forward_s, decision.backward_s)))
        title = f"{layout.schedule}, {layout.grid.pp} ranks, {layout.microbatches} microbatches"
        write_text(self._folder / SVG, draw.svg(title, pictures))
        write_text(self._folder / TRACE, draw.chrome_trace(measured))
        self._say(
            f"schedule: measured step {measured.step_s * 1e3:.1f} ms, bubble {measured.bubble:.1%}; "
            f"{self._folder / SVG} and {self._folder / TRACE}"
        )

    def _weighed(self, batches: Sequence[Batch], total: int, rate: float, number: int) -> torch.Tensor:
        pipeline, device = self._stepper.pipeline, self._comm.device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            losses = self._stepper.step(batches, total, rate, number)
            measured = torch.cuda.max_memory_allocated(device)
        else:
            losses, held = weighed(pipeline, lambda: self._stepper.step(batches, total, rate, number))
            measured = self._states() + held
        rows = self._comm.gather(measured)
        decision = self._decision
        if decision is not None:
            ranks = [rows[rank] for rank in self._layout.grid.pipelines[0]]
            every = "weights, gradients, moments, what autograd keeps, receive buffers"
            if self._recompute:  # it happens inside autograd, out of sight of what counts there
                every += "; not what is computed again in the backward pass, which the plan has"
            counted = "the device's peak" if device.type == "cuda" else every
            self._say(f"memory: planned against measured ({counted})\n" + draw.memory_text(decision.rank_bytes, ranks))
        return losses

    def _states(self) -> int:
        """Bytes of weights, gradients and what the optimizer keeps."""
        optimizer = self._stepper.optimizer
        weights = [p for p in self._stepper.pipeline.parameters() if p.requires_grad]
        kept = [value for p in weights for value in optimizer.state[p].values() if isinstance(value, torch.Tensor)]
        return sum(t.numel() * t.element_size() for t in [*weights, *weights, *kept])
