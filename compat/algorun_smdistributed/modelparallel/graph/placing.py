"""Where layers and variables lie once the model is cut, and what a rank does with variables of other ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from algorun_smdistributed.script_types import Given, Result
from algorun_train.common.errors import UserError

from .tracing import TracedStep

Layer = Any  # TensorFlow's objects have no types for mypy
Variable = Any
VALUE = "VARIABLE_VALUE"  # the name of a variable's value in TensorFlow's checkpoints


@dataclass(slots=True)
class StagePlacement:
    """The stage of each layer and variable of the model. Equal on all ranks of a pipeline."""

    stage: int
    """this rank's"""
    stages: int
    layers: dict[int, int] = field(default_factory=dict)
    """id of a direct layer -> its stage"""
    variables: dict[int, int] = field(default_factory=dict)
    """id of a variable's handle -> its stage"""
    brought: dict[int, Any] = field(default_factory=dict)
    """id of a variable's handle -> its value, of other ranks, while this rank writes a checkpoint of the whole model"""
    is_restoring: bool = False
    """while a checkpoint is read: variables of other ranks leave it out"""
    _order: list[Variable] = field(default_factory=list)
    """the variables, in the order in which they were placed"""
    _alive: list[Any] = field(default_factory=list)
    """the objects of the ids"""

    def add(self, traced: TracedStep, known: dict[int, int], model: Layer) -> None:
        """Places what the traced step uses: layers as `known` says, a layer that it does not know beside the one before."""
        stage = 0
        for span in sorted(traced.recording.layers, key=lambda span: span.first):
            stage = self.layers.setdefault(id(span.layer), known.get(id(span.layer), stage))
            for variable in (*span.layer.variables,):
                self._place(variable, stage)
            self._alive.append(span.layer)
        for variable in model.all_variables():
            if id(variable.handle) not in self.variables:
                self._place(variable, self._first_use(traced, variable))

    def add_slots(self, slots: Iterable[tuple[Variable, Variable]]) -> None:
        """Places an optimizer's variables, each with its variable of the model, in that one's stage."""
        for slot, variable in slots:
            self._place(slot, self.variables[id(variable.handle)])

    def elsewhere(self) -> list[tuple[Variable, int]]:
        """The variables of all stages but the first, with their stages; the same on all ranks of a pipeline."""
        placed = [(variable, self.variables[id(variable.handle)]) for variable in self._order]
        return [(variable, stage) for variable, stage in placed if stage]

    def is_own(self, variable: Variable) -> bool:
        """Whether a variable of the model lies on this rank."""
        return self.variables.get(id(variable.handle), self.stage) == self.stage

    def let_go(self, variables: Iterable[Variable]) -> None:
        """Frees the memory of variables of other ranks. From here on, reading one of them is an error."""
        for variable in variables:
            if not self.is_own(variable) and not isinstance(variable, Elsewhere):
                tf.raw_ops.AssignVariableOp(
                    resource=variable.handle, value=tf.zeros([0], variable.dtype), validate_shape=False
                )
                stage, kind = self.variables[id(variable.handle)], type(variable)
                members = {"partition": stage, "placement": self, "kind": kind}
                variable.__class__ = type(kind.__name__, (Elsewhere, kind), members)

    @contextlib.contextmanager
    def whole(self, variables: Iterable[Variable]) -> Iterator[None]:
        """While it is held, these variables have the values that were brought here, as if all were this rank's."""
        there = [variable for variable in variables if isinstance(variable, Elsewhere)]
        for variable in there:
            variable.__class__ = variable.kind
            value = tf.constant(self.brought[id(variable.handle)])
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value, validate_shape=False)
        try:
            yield
        finally:
            self.let_go(there)

    def _place(self, variable: Variable, stage: int) -> None:
        if id(variable.handle) not in self.variables:
            self.variables[id(variable.handle)] = stage
            self._order.append(variable)

    def _first_use(self, traced: TracedStep, variable: Variable) -> int:
        """The stage of the layer that follows the first operation which gets a variable of the model itself."""
        inside = next((inside for outside, inside in traced.graph.captures if outside is variable.handle), None)
        users = set() if inside is None else {op.name for op in inside.consumers()}
        first = next((n for n, op in enumerate(traced.graph.get_operations()) if op.name in users), None)
        if first is None:
            return 0
        later = [span for span in traced.recording.layers if span.end > first]
        return self.layers[id(min(later, key=lambda span: span.end).layer)] if later else self.stages - 1


class Elsewhere:
    """Mixed into a variable that lies on another rank. Graphs may name it; reading its value fails."""

    partition = 0
    handle: Any  # TensorFlow's
    placement: StagePlacement
    kind: type[Any]  # its class on its own rank

    def _read_variable_op(self, *args: Given, **kwargs: Given) -> Result:
        if tf.executing_eagerly():
            raise self._error()
        return super()._read_variable_op(*args, **kwargs)  # type: ignore[misc]

    def _serialize_to_tensors(self) -> Result:
        if self.placement.is_restoring:
            return {}
        value = self.placement.brought.get(id(self.handle))
        if value is None:
            raise self._error()
        return {VALUE: tf.constant(value)}

    def _restore_from_tensors(self, restored_tensors: Given) -> Result:
        if not self.placement.is_restoring:
            raise self._error()
        return tf.no_op()

    def _gather_saveables_for_checkpoint(self) -> Result:
        raise self._error()

    def _error(self) -> UserError:
        return UserError(
            f"smp: variable {getattr(self, 'name', '')} lies in partition {self.partition}, on another rank; allowed: "
            "model.variables, which are this rank's; fix: smp.CheckpointManager for a checkpoint, or read it there"
        )
