"""Which layers form each stage: measured, and decided by the project's own partitioner."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from algorun_train.common.errors import UserError
from algorun_train.parallel.partition.cost_model import CostModel
from algorun_train.parallel.partition.costs import Partition, SegmentProfile
from algorun_train.parallel.partition.layers_to_stages import choose_stages
from algorun_train.parallel.schedules import PipelineShape

from .cutting import GraphCut
from .tracing import TracedStep

Layer = Any  # TensorFlow's objects have no types for mypy
Tensor = Any
ROUNDS = 3  # of which the fastest counts; one more before them


@dataclass(frozen=True, slots=True)
class Segments:
    """The model's direct layers in the order of their first calls, in groups that each have weights to train."""

    groups: tuple[tuple[Layer, ...], ...]

    def stages(self, begins: Sequence[int]) -> dict[int, int]:
        """id of a layer -> its stage, where stages begin with these groups."""
        return {
            id(layer): sum(begin <= number for begin in begins) - 1
            for number, group in enumerate(self.groups)
            for layer in group
        }

    def text(self, begins: Sequence[int]) -> str:
        """The stages with their layers, for the log."""
        ends = [*begins[1:], len(self.groups)]
        stages = [
            [layer.name for group in self.groups[b:e] for layer in group] for b, e in zip(begins, ends, strict=True)
        ]
        return "; ".join(f"{number}: {', '.join(names)}" for number, names in enumerate(stages))


def segments(traced: TracedStep, partitions: int) -> Segments:
    """The groups. Raises UserError for a model with fewer of them than `partitions`."""
    layers: dict[int, Layer] = {}
    for span in traced.recording.layers:
        layers.setdefault(id(span.layer), span.layer)
    groups: list[list[Layer]] = []
    known: set[int] = set()
    for layer in layers.values():
        weights = {id(variable) for variable in layer.trainable_variables} - known
        known |= weights
        if not groups or (weights and any(each.trainable_variables for each in groups[-1])):
            groups.append([])
        groups[-1].append(layer)
    if partitions > len(groups):
        names = ", ".join(layer.name for layer in layers.values() if layer.trainable_variables)
        raise UserError(
            f'smp: "partitions": {partitions}; allowed: 1 .. {max(len(groups), 1)}, the direct layers of the model that have weights '
            f"({names or 'none'}); fix: fewer partitions, or more layers that the model's call calls itself"
        )
    return Segments(tuple(map(tuple, groups)))


def named(traced: TracedStep, partitions: int, default: int) -> tuple[Segments, tuple[int, ...]]:
    """The model's direct layers, each for itself, and the one with which each stage begins, as smp.partition says; elsewhere they
    belong to `default`. Raises UserError for stages that are not one after the other, and for one without weights."""
    wanted: dict[int, int] = {}
    layers: list[Layer] = []
    for span in sorted(traced.recording.layers, key=lambda span: span.first):
        partition = default if span.partition is None else span.partition
        if id(span.layer) not in wanted:
            layers.append(span.layer)
        if wanted.setdefault(id(span.layer), partition) != partition:
            raise UserError(
                f"smp.partition: layer {span.layer.name} is called in partitions {wanted[id(span.layer)]} and {partition}; allowed: one "
                "of them; fix: the same partition around all calls"
            )
    order = [wanted[id(layer)] for layer in layers]
    text = ", ".join(f"{layer.name} {number}" for layer, number in zip(layers, order, strict=True))
    if order != sorted(order):
        raise UserError(
            f"smp.partition: the layers have partitions {text}, in the order of their calls; allowed: rising numbers, because stages "
            "run one after the other; fix: number them in the order of the calls"
        )
    trained = {number for layer, number in zip(layers, order, strict=True) if layer.trainable_variables}
    if missing := sorted(set(range(partitions)) - trained):
        raise UserError(
            f"smp.partition: no layer with weights in partition {', '.join(map(str, missing))} ({text}); allowed: some in each of "
            f'0 .. {partitions - 1}, as "partitions" says; fix: put layers into every one of them, or ask for fewer partitions'
        )
    return Segments(tuple((layer,) for layer in layers)), tuple(order.index(number) for number in range(partitions))


def chosen(
    found: Segments,
    finest: GraphCut,
    inputs: Sequence[Tensor],
    names: Sequence[str],
    shape: PipelineShape,
    optimize: str,
) -> tuple[Partition, list[SegmentProfile]]:
    """The best partition, and what was measured of each group. `finest` has a stage for each group; it runs here, on `inputs`."""
    forward, backward, saved = _measured(finest, dict(zip(names, inputs, strict=True)))
    entries = (0, *finest.boundary_bytes)
    profiles = [
        SegmentProfile(
            name=group[0].name,
            units=tuple(layer.name for layer in group),
            forward_s=forward[number],
            backward_s=backward[number],
            saved_bytes=saved[number],
            parameter_bytes=sum(_bytes(variable) for layer in group for variable in layer.trainable_variables),
            boundary_bytes=entries[number],
        )
        for number, group in enumerate(found.groups)
    ]
    partition = choose_stages(CostModel(profiles, shape), optimize)
    assert partition is not None  # without a limit of memory there is one
    return partition, profiles


def _measured(cut: GraphCut, known: Mapping[str, Tensor]) -> tuple[list[float], list[float], list[int]]:
    """Seconds of the forward and backward pass of each stage, and the bytes kept between them. Nothing is updated."""
    stages, values = cut.stages, dict(known)
    seconds = dict.fromkeys(range(2 * stages), 0.0)
    for position in range(2 * stages):
        if (piece := cut.pieces.get(position)) is not None:
            feeds = [values[name] for name in piece.feeds]
            best = float("inf")
            for _ in range(1 + ROUNDS):
                begin = time.perf_counter()
                fetched = piece.function(*feeds)
                best = min(best, time.perf_counter() - begin)
            seconds[position] = best
            values.update(zip(piece.fetches, fetched, strict=True))
    saved = []
    for stage in range(stages):
        forward, backward = cut.pieces.get(stage), cut.pieces.get(2 * stages - 1 - stage)
        kept = set(forward.fetches) & set(backward.feeds) if forward and backward else set()
        saved.append(sum(_nbytes(values[name]) for name in kept))
    return (
        [seconds[stage] for stage in range(stages)],
        [seconds[2 * stages - 1 - stage] for stage in range(stages)],
        saved,
    )


def _nbytes(value: Tensor) -> int:
    """Bytes of a tensor; those of a list of tensors, which a loop keeps, are not known."""
    return 0 if value.dtype.name in ("variant", "resource") else int(value.numpy().nbytes)


def _bytes(variable: Any) -> int:  # tf.Variable
    return int(variable.shape.num_elements()) * int(variable.dtype.size)
