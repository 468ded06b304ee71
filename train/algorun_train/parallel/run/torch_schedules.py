"""torch.distributed.pipelining's schedules by the names of our options, and a stage whose computations can be timed.

Only public names of torch are used: private ones change with every release. `forward_one_chunk`, `backward_one_chunk`
and `backward_weight_one_chunk` are methods without an underscore on PipelineStage from torch 2.10 to 2.15.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.distributed import pipelining
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from algorun_train.common.activity import Activity
from algorun_train.parallel.model.segments import TensorSpec
from algorun_train.parallel.schedules import Action, Span

T = TypeVar("T")
FORWARD, BACKWARD = Activity("forward"), Activity("backward")
Loss = Callable[[Any, torch.Tensor], torch.Tensor]  # Any: the model's output, of the user's own type


def gpipe(
    stage: pipelining.PipelineStage,
    microbatches: int,
    **named: Any,  # Any: torch's own options of a schedule
) -> pipelining.ScheduleGPipe:
    """torch's GPipe. It also takes fewer microbatches than stages, which torch 2.10 refuses without need."""
    stages = stage.num_stages
    stage.num_stages = min(stages, microbatches)
    try:
        return pipelining.ScheduleGPipe(stage, microbatches, **named)
    finally:
        stage.num_stages = stages


SINGLE: dict[str, Callable[..., PipelineScheduleSingle]] = {"gpipe": gpipe, "1f1b": pipelining.Schedule1F1B}
MULTI: dict[str, Callable[..., PipelineScheduleMulti]] = {
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "zero-bubble": pipelining.ScheduleInterleavedZeroBubble,
    "zbv": pipelining.ScheduleZBVZeroBubble,
    "dualpipev": pipelining.ScheduleDualPipeV,
}


class Recorder:
    """Times the computations of one step, in seconds since `start`. Off unless started: it waits for a GPU at every span."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._zero = device, 0.0
        self.on = False
        self.spans: list[Span] = []

    def start(self) -> None:
        """Begins to record, at time zero."""
        self.spans, self.on, self._zero = [], True, self._now()

    def stop(self) -> tuple[Span, ...]:
        """Ends recording; returns this rank's spans in the order of their begins."""
        self.on = False
        return tuple(self.spans)

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def run(self, kind: str, stage: int, microbatch: int, work: Callable[[], T]) -> T:
        """The result of `work`, an action of this kind (see `schedules.Action`); timed if the recorder is on."""
        if not self.on:
            with FORWARD if kind == "F" else BACKWARD:
                return work()
        begin = self._now()
        with FORWARD if kind == "F" else BACKWARD:
            result = work()
        self.spans.append(Span(Action(kind, stage, microbatch), begin - self._zero, self._now() - self._zero))
        return result


class RecordedStage(pipelining.PipelineStage):
    """A PipelineStage whose computations a recorder can time. It calls `before_backward` before each backward pass."""

    # Any: torch's own arguments and results, which differ between its releases
    def __init__(self, recorder: Recorder, before_backward: Callable[[], None], *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._recorder, self._before_backward = recorder, before_backward

    def receive_buffers(self) -> list[torch.Tensor]:
        """The buffers for other stages' tensors. Before torch 2.15 there are some for every microbatch, from the first step on."""
        tables = (self.args_recv_info, self.grad_recv_info)
        found = [getattr(info, "buffer", None) for table in tables for row in table.values() for info in row]
        return [buffer for buffer in found if isinstance(buffer, torch.Tensor)]

    # Any: torch's own arguments and results, which differ between its releases
    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **named: Any) -> Any:
        work = super().forward_one_chunk
        return self._recorder.run("F", self.stage_index, fwd_chunk_id, lambda: work(fwd_chunk_id, *arguments, **named))

    # Any: torch's own arguments and results, which differ between its releases
    def backward_one_chunk(self, bwd_chunk_id: int, *arguments: Any, **named: Any) -> Any:
        work = super().backward_one_chunk
        self._before_backward()
        kind = "B" if named.get("full_backward", True) else "I"
        return self._recorder.run(kind, self.stage_index, bwd_chunk_id, lambda: work(bwd_chunk_id, *arguments, **named))

    # Any: torch's own arguments and results, which differ between its releases
    def backward_weight_one_chunk(self, bwd_chunk_id: int, *arguments: Any, **named: Any) -> Any:
        work = super().backward_weight_one_chunk
        return self._recorder.run("W", self.stage_index, bwd_chunk_id, lambda: work(bwd_chunk_id, *arguments, **named))


def tensors(specs: Sequence[TensorSpec], gradients: bool) -> tuple[torch.Tensor, ...]:
    """Tensors on meta of these shapes and types, which require gradients or not.

    PipelineStage gets them as its inputs and outputs. Without them it finds the shapes by a pass on uninitialised memory,
    which makes the statistics of BatchNorm wrong (torch 2.12, 2.13).
    """
    return tuple(
        torch.empty(
            spec.shape, dtype=spec.dtype, device="meta", requires_grad=gradients and spec.dtype.is_floating_point
        )
        for spec in specs
    )


def schedule(
    name: str, stages: Sequence[pipelining.PipelineStage], microbatches: int, loss: Loss
) -> PipelineScheduleSingle | PipelineScheduleMulti:
    """torch's schedule for the stages of this rank. `loss` is of one microbatch; torch does not scale gradients."""
    if name in SINGLE:
        return SINGLE[name](stages[0], microbatches, loss_fn=loss, scale_grads=False)
    return MULTI[name](list(stages), microbatches, loss_fn=loss, scale_grads=False)
