"""In which stage, and in which pass, each operation of a traced step runs.

A position is a number: 0 .. S - 1 are the forward passes of the S stages, S .. 2 S - 1 the backward passes from the last
stage to the first. An operation runs in the layer's stage that made it; the gradient of an operation in that operation's
stage (TensorFlow keeps the original). It never runs before its inputs: it moves to their position where that is later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from algorun_train.common.errors import UserError

from .tracing import TracedStep

Operation = Any  # TensorFlow's objects have no types for mypy
Tensor = Any
READ = "ReadVariableOp"


def rank_of(position: int, stages: int) -> int:
    """The stage, and so the pipeline rank, of a position."""
    return position if position < stages else 2 * stages - 1 - position


@dataclass(frozen=True, slots=True)
class Positions:
    """The operations of a graph that a step needs, with their positions."""

    stages: int
    of: Mapping[Operation, int]
    """operations that compute"""
    free: frozenset[Operation]
    """constants, and what follows from them alone: computed wherever something needs them"""
    effects: tuple[Operation, ...]
    """operations that change something and run in their position: updates of a layer's own variables, prints"""
    everywhere: tuple[Operation, ...]
    """operations outside the model that change variables of the script, such as metrics, with all that only they need:
    they run on every rank after the passes"""
    outside: tuple[Operation, ...]
    """those of `everywhere` that change something"""


class Owners:
    """Which stage each variable of the model belongs to, by its place in memory that the graph has captured."""

    def __init__(self, traced: TracedStep, stage_of_variable: Mapping[int, int]) -> None:
        """`stage_of_variable`: id of a variable's handle -> its stage."""
        self._internal = {internal.name: external for external, internal in traced.graph.captures}
        self._stage = stage_of_variable

    def is_captured(self, tensor: Tensor) -> bool:
        """Whether it comes from outside the graph, a variable's handle or a constant."""
        return tensor.name in self._internal

    def stages(self, operation: Operation) -> set[int]:
        """The stages of the model's variables that an operation gets directly."""
        found = (self._internal.get(tensor.name) for tensor in operation.inputs)
        return {self._stage[id(each)] for each in found if each is not None and id(each) in self._stage}

    def strangers(self, operation: Operation) -> set[int]:
        """The handles among its inputs that are no variable of the model."""
        found = (self._internal.get(tensor.name) for tensor in operation.inputs if tensor.dtype.name == "resource")
        return {id(each) for each in found if each is not None and id(each) not in self._stage}


def find(
    traced: TracedStep,
    results: Sequence[Tensor],
    stage_of_layer: Mapping[int, int],
    owners: Owners,
    stages: int,
    trial: bool = False,
) -> Positions:
    """The positions. `results` are the tensors that the step returns; `stage_of_layer`: id of a direct layer -> its stage.
    `trial`: a layer may be needed in two stages.

    Raises UserError for a layer that is needed in two stages, and a result that follows from a variable changed here.
    """
    operations = traced.graph.get_operations()
    inside = _inside(traced)
    last_model = max(span.end for span in traced.recording.models)
    free = _free(operations, owners)
    changing = [op for op in operations if _changes(op)]
    numbers = {op: number for number, op in enumerate(operations)}
    outside = [
        op
        for op in changing
        if numbers[op] not in inside and owners.strangers(op) and not owners.stages(op) and op._original_op is None
    ]
    effects = [op for op in changing if op not in set(outside)]
    needed = ancestors([tensor.op for tensor in results] + effects)
    _check_results(needed, outside, owners)
    of: dict[Operation, int] = {}
    running = 0
    layer_at = {number: span.layer for span in traced.recording.layers for number in range(span.first, span.end)}
    everywhere = ancestors(outside)
    for number, op in enumerate(operations):
        if op.type == "Placeholder" or op in free:
            continue
        before = [of[source] for source in (*(tensor.op for tensor in op.inputs), *op.control_inputs) if source in of]
        latest = max(before, default=-1)
        layer = layer_at.get(number)
        if layer is not None and op._original_op is None:
            running = wanted = stage_of_layer[id(layer)]
        elif op._original_op is not None:
            original = of.get(op._original_op)
            wanted = max(stages, latest) if original is None else max(original, 2 * stages - 1 - original)
        elif number in inside:
            wanted = latest if latest >= 0 else running
        else:
            wanted = stages - 1 if number >= last_model else max(latest, 0)
        if owned := owners.stages(op):
            wanted = min(owned) if wanted < stages else 2 * stages - 1 - min(owned)
        of[op] = max(wanted, latest)
        if not trial and (op in needed or op in everywhere) and owned and owned != {rank_of(of[op], stages)}:
            raise UserError(
                f"smp.step: {_named(layer, op)} is needed in more than one stage; allowed: a layer whose calls are in one "
                f'stage; fix: fewer "partitions" than {stages}, or a layer around all calls'
            )
    return Positions(
        stages=stages,
        of={op: position for op, position in of.items() if op in needed},
        free=frozenset(free),
        effects=tuple(effects),
        everywhere=tuple(
            op
            for op in operations
            if op in everywhere and op in of and numbers[op] not in inside and of[op] == stages - 1
        ),
        outside=tuple(outside),
    )


def _inside(traced: TracedStep) -> set[int]:
    return {number for span in traced.recording.models for number in range(span.first, span.end)}


def _free(operations: Sequence[Operation], owners: Owners) -> set[Operation]:
    free: set[Operation] = set()
    for op in operations:
        if op.type in ("Placeholder", "NoOp") or op.op_def.is_stateful:
            continue
        if all(tensor.op in free and not owners.is_captured(tensor) for tensor in op.inputs):
            free.add(op)
    return free


def _changes(op: Operation) -> bool:
    """Whether an operation may do more than compute its outputs. Random numbers are drawn only where something needs them."""
    if op.type in (READ, "VarHandleOp", "Placeholder") or not op.op_def.is_stateful:
        return False
    takes_resource = any(tensor.dtype.name == "resource" for tensor in op.inputs)
    return (takes_resource and op.type not in ("ResourceGather", "ResourceGatherNd", "VariableShape")) or not op.outputs


def ancestors(ends: Sequence[Operation]) -> set[Operation]:
    """These operations, and all that they follow from."""
    found, todo = set(ends), list(ends)
    while todo:
        op = todo.pop()
        for source in (*(tensor.op for tensor in op.inputs), *op.control_inputs):
            if source not in found:
                found.add(source)
                todo.append(source)
    return found


def _check_results(needed: set[Operation], outside: Sequence[Operation], owners: Owners) -> None:
    changed = set().union(*(owners.strangers(op) for op in outside))
    for op in needed - set(outside):
        if owners.strangers(op) & changed:
            raise UserError(
                f"smp.step: what the function returns follows from a variable that it changes outside the model (operation {op.name}); "
                "allowed: results that follow from the model; fix: read a metric's result() after the step"
            )


def _named(layer: object, op: Operation) -> str:
    return f"layer {getattr(layer, 'name', None)!r}" if layer is not None else f"operation {op.name}"
