"""Where layers and variables lie once the model is cut, and what a rank does with variables of other ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from algorun_smdistributed.script_types import Given, Result
from algorun_train.common.errors import UserError

from .tracing import TracedStep

Layer = Any  # TensorFlow's objects have no types for mypy
Variable = Any


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
                variable.__class__ = type(kind.__name__, (Elsewhere, kind), {"partition": stage})

    def _place(self, variable: Variable, stage: int) -> None:
        if id(variable.handle) not in self.variables:
            self.variables[id(variable.handle)] = stage
            self._alive.append(variable)

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

    def _read_variable_op(self, *args: Given, **kwargs: Given) -> Result:
        if tf.executing_eagerly():
            raise self._error()
        return super()._read_variable_op(*args, **kwargs)  # type: ignore[misc]

    def _serialize_to_tensors(self) -> Result:
        raise self._error()

    def _gather_saveables_for_checkpoint(self) -> Result:
        raise self._error()

    def _error(self) -> UserError:
        return UserError(
            f"smp: variable {getattr(self, 'name', '')} lies in partition {self.partition}, on another rank; allowed: "
            "model.variables, which are this rank's; fix: read or save it there"
        )
