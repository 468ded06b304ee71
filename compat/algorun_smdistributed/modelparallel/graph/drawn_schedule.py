"""An early step with gradients, measured and drawn as the pipeline entrypoint's option --explain does it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from algorun_smdistributed.ranks.rank_group import RankGroup
from algorun_train.parallel.draw.measured import TIMED_STEP, write_schedule
from algorun_train.parallel.schedules import Action, PipelineShape, Span

from .saved_partition import SavedPartition


class DrawnSchedule:
    """The one step of a job that is drawn: the fourth of the signature that gets there first. On all ranks of a pipeline."""

    def __init__(self, pipeline: RankGroup, shape: PipelineShape, saved: SavedPartition) -> None:
        """The files go beside the partition's, which rank 0 has."""
        self._pipeline, self._shape, self._saved = pipeline, shape, saved
        self._is_drawn, self._on, self._zero = False, False, 0.0
        self._spans: list[Span] = []

    def begin(self, number: int) -> None:
        """Step `number` of a signature, from 1, begins on all ranks of the pipeline at once."""
        self._on = number == TIMED_STEP and not self._is_drawn
        self._zero = time.perf_counter()  # the common zero of time: hosts have different clocks

    def run(self, action: Action, work: Callable[[], Any]) -> None:
        """Does `work`, and times it if this step is the one; then it waits for a GPU."""
        if not self._on:
            work()
            return
        begin = time.perf_counter()
        work()
        tf.test.experimental.sync_devices()
        self._spans.append(Span(action, begin - self._zero, time.perf_counter() - self._zero))

    def end(self) -> None:
        """The step has ended; rank 0 draws it, if it is the one. A folder that cannot be written does not end the training."""
        if not self._on:
            return
        self._on, self._is_drawn = False, True
        rows = self._pipeline.gathered(self._spans, "the times of a step")
        if self._pipeline.rank == 0:
            try:
                text = write_schedule(self._saved.own.parent, self._shape, rows, TIMED_STEP, self._saved.seconds)
            except OSError as error:
                text = f"schedule: not drawn: {error}"
            print(f"smp: {text}", flush=True)
