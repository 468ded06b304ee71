"""A step on this rank: its pieces in the order of the schedule, and what crosses to other ranks."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

from algorun_smdistributed.ranks.rank_group import RankGroup
from algorun_train.parallel.schedules import Action, orders

from .cutting import INPUT, GraphCut, GraphPiece, Key
from .drawn_schedule import DrawnSchedule
from .positions import rank_of

Tensor = Any  # TensorFlow's objects have no types for mypy


class StepRun:
    """Runs the steps of one signature. Made and called on all ranks of a pipeline."""

    def __init__(
        self,
        cut: GraphCut,
        pipeline: RankGroup,
        schedule: str,
        microbatches: int,
        inputs: Sequence[Key],
        results: Sequence[Key],
        drawn: DrawnSchedule | None = None,
    ) -> None:
        """`inputs`: names of the arguments, `results`: of the tensors that this rank returns for each microbatch."""
        self._cut, self._pipeline, self._count = cut, pipeline, microbatches
        self._inputs, self._results = tuple(inputs), tuple(results)
        self._actions = _actions(cut, schedule, pipeline, microbatches)
        after = (*results, *(cut.everywhere.feeds if cut.everywhere else ()))
        self._kept = frozenset(after)
        self._drawn, self._steps = drawn if cut.has_backward else None, 0

    def __call__(self, batches: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """The results of each microbatch. `batches`: the arguments of each; the first rank's count on all ranks."""
        with record.stop_recording():
            self._steps += 1
            if self._drawn is None:
                return self._run(batches)
            self._drawn.begin(self._steps)
            results = self._run(batches)
            self._drawn.end()
            return results

    def _run(self, batches: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        me, stages = self._pipeline.rank, self._cut.stages
        values: list[dict[Key, Tensor]] = [{} for _ in range(self._count)]
        if me == 0:
            for known, batch in zip(values, batches, strict=True):
                known.update(zip(self._inputs, batch, strict=True))
        waiting = [
            {position for (position, to) in self._cut.messages if to == me and rank_of(max(position, 0), stages) != me}
            for _ in range(self._count)
        ]
        for action in self._actions:
            known, number = values[action.microbatch], action.microbatch
            position = action.stage if action.kind == "F" else 2 * stages - 1 - action.stage
            if me == 0 and position == 0:
                self._send(INPUT, number, known)
            if (piece := self._cut.pieces.get(position)) is not None:
                for source in sorted(waiting[number]):
                    if source < position and any(key in piece.feeds for key in self._cut.messages[source, me]):
                        self._receive(source, number, known)
                        waiting[number].discard(source)
                if self._drawn is None:
                    self._compute(piece, known)
                else:
                    self._drawn.run(action, functools.partial(self._compute, piece, known))
                self._send(position, number, known)
            if position >= stages:  # nothing of this microbatch is computed here any more
                for key in known.keys() - self._kept:
                    del known[key]
        for number, sources in enumerate(waiting):
            for source in sorted(sources):
                self._receive(source, number, values[number])
        if self._cut.everywhere:
            for known in values:
                self._compute(self._cut.everywhere, known)
        self._pipeline.all_sent()
        return [[known[key] for key in self._results] for known in values]

    def _compute(self, piece: GraphPiece, known: dict[Key, Tensor]) -> None:
        fetched = piece.function(*(known[key] for key in piece.feeds))
        if piece.fetches:
            known.update(zip(piece.fetches, fetched, strict=True))

    def _send(self, position: int, number: int, known: Mapping[Key, Tensor]) -> None:
        for (source, to), keys in self._cut.messages.items():
            if source == position:
                self._pipeline.post(
                    [known[key].numpy() for key in keys], to, self._tag(position, number), self._name(position, number)
                )

    def _receive(self, source: int, number: int, known: dict[Key, Tensor]) -> None:
        rank = rank_of(max(source, 0), self._cut.stages)
        arrays = self._pipeline.receive(rank, self._tag(source, number), self._name(source, number))
        known.update(zip(self._cut.messages[source, self._pipeline.rank], map(tf.constant, arrays), strict=True))

    def _tag(self, position: int, number: int) -> int:
        return (position + 1) * self._count + number

    def _name(self, position: int, number: int) -> str:
        stages = self._cut.stages
        what = "the batch" if position == INPUT else "the forward pass" if position < stages else "the backward pass"
        return f"{what} of microbatch {number}"


def _actions(cut: GraphCut, schedule: str, pipeline: RankGroup, microbatches: int) -> tuple[Action, ...]:
    """The passes of this rank, in order. A step without gradients has forward passes alone."""
    if not cut.has_backward:
        return tuple(Action("F", pipeline.rank, number) for number in range(microbatches))
    return orders(schedule, cut.stages, 1, microbatches)[pipeline.rank]
