"""Seconds and bytes of any partition of a model under one schedule, predicted from the profiles of its segments."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from algorun_train.common.errors import UserError
from algorun_train.parallel import schedules
from algorun_train.parallel.schedules import PipelineShape

from .costs import Begins, Partition, SegmentProfile
from .memory import MemoryModel, StageBytes, rank_bytes, stage_bytes
from .shared_bytes import SharedBytes

N = TypeVar("N", int, float)


class CostModel:
    """Costs of partitions of `segments` over the stages of one pipeline."""

    def __init__(
        self, segments: Sequence[SegmentProfile], shape: PipelineShape, memory: MemoryModel | None = None
    ) -> None:
        """Raises UserError if the schedule forbids the numbers of `shape`, or there are more stages than segments."""
        self.segments, self.shape, self.memory = segments, shape, memory or MemoryModel()
        self.orders = schedules.orders(shape.schedule, shape.ranks, shape.chunks, shape.microbatches)
        self.rank_of_stage = schedules.rank_of(shape.schedule, shape.ranks, shape.chunks)
        if shape.stages > len(segments):
            raise UserError(
                f"{shape.ranks} pipeline ranks x {shape.chunks} stages need {shape.stages} segments; allowed: at most "
                f"{len(segments)}, the segments that this model can be cut into; fix: fewer ranks, or fewer stages "
                "per rank"
            )
        self.in_flight = schedules.in_flight_by_stage(self.orders)
        self.shared = SharedBytes(segments)
        extra = [s.forward_s if self.memory.recompute else 0.0 for s in segments]  # within the backward pass
        self._forward = _sums(s.forward_s for s in segments)
        self._backward = _sums(s.backward_s + more for s, more in zip(segments, extra, strict=True))
        self._states = _sums(self.memory.states(s.parameter_bytes) for s in segments)
        self._saved = _sums(s.saved_bytes for s in segments)

    @functools.cached_property
    def simulator(self) -> schedules.Simulator:
        """Gives the seconds of a step for the seconds of its stages."""
        return schedules.Simulator(self.orders)

    def predict(self, begins: Begins) -> Partition:
        """The costs of one partition."""
        forward, backward = self.times(begins)
        timeline = self.simulator.timeline(forward, backward)
        sizes = (
            sum(s.parameter_bytes for s in self.segments[begin:end]) - sum(self.shared.counted_twice(begin, end))
            for begin, end in self._spans(begins)
        )
        return Partition(
            begins=begins,
            ranks=self.rank_of_stage,
            forward_s=tuple(forward),
            backward_s=tuple(backward),
            parameter_bytes=tuple(sizes),
            in_flight=self.in_flight,
            stage_bytes=stage_bytes(self._stages(begins), self.orders),
            rank_bytes=self.rank_bytes(begins),
            step_s=timeline.step_s,
            bubble=timeline.bubble,
        )

    def times(self, begins: Begins) -> tuple[list[float], list[float]]:
        """Seconds of the forward and of the backward pass of each stage, for one microbatch."""
        spans = self._spans(begins)
        return (
            [self._forward[end] - self._forward[begin] for begin, end in spans],
            [self._backward[end] - self._backward[begin] for begin, end in spans],
        )

    def rank_bytes(self, begins: Begins) -> tuple[int, ...]:
        """Bytes of each rank at its peak. A shared weight that several stages of a rank use counts once."""
        found = list(rank_bytes(self._stages(begins), self.orders))
        for _, stages, size in self.shared.of_stages(begins):
            for rank, many in Counter(self.rank_of_stage[stage] for stage in stages).items():
                found[rank] -= (many - 1) * self.memory.states(size)
        return tuple(found)

    def least_bytes(self, segment: SegmentProfile) -> int:
        """Bytes that a rank needs at least for this segment, in whatever stage. Receive buffers are not in it: they
        depend on the other segments of the stage."""
        microbatches = 1 if self.memory.recompute else min(self.in_flight)
        return self.memory.states(segment.parameter_bytes) + microbatches * segment.saved_bytes

    def _spans(self, begins: Begins) -> list[tuple[int, int]]:
        return list(itertools.pairwise([*begins, len(self.segments)]))

    def _stages(self, begins: Begins) -> list[StageBytes]:
        return [self._stage(begin, end) for begin, end in self._spans(begins)]

    def _stage(self, begin: int, end: int) -> StageBytes:
        states, buffers = self._states[end] - self._states[begin], self._buffers(begin, end)
        states -= sum(map(self.memory.states, self.shared.counted_twice(begin, end)))
        saved = self._saved[end] - self._saved[begin]
        if not self.memory.recompute:
            return StageBytes(states, buffers, saved)
        entry = self.segments[begin].boundary_bytes if begin else 0  # the first stage's input is the batch itself
        return StageBytes(states, buffers, self.memory.kept(entry), recomputed=saved)

    def _buffers(self, begin: int, end: int) -> int:
        """Receive buffers. The model's input and output are not received."""
        entry = self.segments[begin].boundary_bytes if begin else 0
        leaving = self.segments[end].boundary_bytes if end < len(self.segments) else 0
        return self.memory.buffers(entry, leaving, self.shape.microbatches)


def _sums(values: Iterable[N]) -> list[N]:
    """Sums of the first 0, 1, 2, .. values."""
    total: N = 0
    sums = [total]
    for value in values:
        total += value
        sums.append(total)
    return sums
