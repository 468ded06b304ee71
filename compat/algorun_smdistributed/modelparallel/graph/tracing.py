"""Runs a step function once with symbolic tensors, and keeps what a cut needs to know of the graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
import tf_keras
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api as autograph

from algorun_smdistributed.script_types import Given, Result
from algorun_train.common.errors import UserError

Layer = Any  # TensorFlow's objects have no types for mypy
Variable = Any
Tensor = Any

LOSS_SCALE = tf_keras.mixed_precision.LossScaleOptimizer
TAPE = (
    "tf.GradientTape inside an @smp.step function; allowed: optimizer.get_gradients(loss, model.trainable_variables); fix: "
    "use it in place of the tape"
)


@dataclass(frozen=True, slots=True)
class LayerCall:
    """The operations `first` .. `end` - 1 of the graph, by their number: one call of a layer."""

    layer: Layer
    first: int
    end: int
    partition: int | None = None
    """that of smp.partition around it"""


@dataclass(slots=True)
class TraceRecord:
    """What happened while the function ran."""

    layers: list[LayerCall] = field(default_factory=list)
    """calls of the model's direct layers"""
    models: list[LayerCall] = field(default_factory=list)
    """calls of the model itself"""
    gradients: dict[int, Variable] = field(default_factory=dict)
    """id of each gradient that optimizer.get_gradients returned -> its variable"""
    optimizers: dict[int, tuple[Any, list[Variable]]] = field(default_factory=dict)
    """id of an optimizer -> itself, and the variables that it was asked for"""
    kept: list[Tensor] = field(default_factory=list)
    """the same gradients: an id is good while its object lives"""
    has_tape: bool = False
    has_loss_scale: bool = False


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One microbatch of a step function as a graph."""

    concrete: Any
    """the function of TensorFlow that computes it whole"""
    inputs: tuple[Tensor, ...]
    """placeholders of the arguments that are tensors, in their order"""
    result: Result
    """what the function returned, with symbolic tensors"""
    recording: TraceRecord

    @property
    def graph(self) -> Any:  # tf.Graph
        return self.concrete.graph


def trace(
    model: Layer,
    function: Callable[..., Result],
    specs: list[tf.TensorSpec],
    call: Callable[..., tuple[Given, Given]],
    partitions: list[int],
) -> TracedStep:
    """`function` as a graph. `call` makes its arguments from tensors of `specs`. Twice: the first time creates variables.

    `partitions`: those of the smp.partition contexts that are open, which the function changes.
    Raises UserError for a function that uses tf.GradientTape, or whose optimizer is Keras 3's.
    """
    _traced(model, function, specs, call, partitions)
    return _traced(model, function, specs, call, partitions)


def _traced(
    model: Layer,
    function: Callable[..., Result],
    specs: list[tf.TensorSpec],
    call: Callable[..., tuple[Given, Given]],
    partitions: list[int],
) -> TracedStep:
    kept: dict[str, Any] = {}

    def whole(*tensors: Tensor) -> list[Tensor]:
        args, kwargs = call(tensors)
        # TensorFlow's own default, whatever the caller of the step has: `if` and `for` over tensors become operations.
        with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.UNSPECIFIED) as context:
            converted = autograph.tf_convert(function, context)
            with _recorded(model, tf.compat.v1.get_default_graph(), partitions) as recording:
                kept["recording"] = recording
                result = converted(*args, **kwargs)
        kept["result"] = tf.nest.map_structure(
            lambda leaf: tf.convert_to_tensor(leaf) if _is_variable(leaf) else leaf, result
        )
        return [each for each in tf.nest.flatten(kept["result"], expand_composites=True) if isinstance(each, tf.Tensor)]

    try:
        concrete = tf.function(whole, autograph=False).get_concrete_function(*specs)
    except Exception:
        if kept.get("recording") and kept["recording"].has_tape:
            raise UserError(TAPE) from None
        raise
    if kept["recording"].has_tape:
        raise UserError(TAPE)
    return TracedStep(concrete, tuple(concrete.graph.inputs[: len(specs)]), kept["result"], kept["recording"])


def _is_variable(leaf: object) -> bool:
    return isinstance(leaf, tf.Variable)


@contextlib.contextmanager
def _recorded(model: Layer, graph: Any, partitions: list[int]) -> Iterator[TraceRecord]:  # tf.Graph
    """While it is held, calls of layers, of optimizer.get_gradients and of tf.GradientTape are recorded."""
    recording, path = TraceRecord(), list[Layer]()
    layer_class, tape_class = tf_keras.layers.Layer, tf.GradientTape
    layer_call, enter = layer_class.__call__, tape_class.__enter__

    def call(layer: Layer, *args: Given, **kwargs: Given) -> Result:
        is_model, is_direct = layer is model and not path, len(path) == 1
        if not (is_model or is_direct) or tf.compat.v1.get_default_graph() is not graph:
            return layer_call(layer, *args, **kwargs)
        first, partition = len(graph.get_operations()), partitions[-1] if partitions else None
        path.append(layer)
        try:
            return layer_call(layer, *args, **kwargs)
        finally:
            path.pop()
            (recording.models if is_model else recording.layers).append(
                LayerCall(layer, first, len(graph.get_operations()), partition)
            )

    def gradients(optimizer: Given, loss: Tensor, params: Given) -> list[Tensor]:
        variables = tf.nest.flatten(params)
        recording.optimizers.setdefault(id(optimizer), (optimizer, variables))
        if isinstance(optimizer, LOSS_SCALE):  # that of Keras 2 for older optimizers does it by itself
            found = optimizer.get_unscaled_gradients(tf.gradients(optimizer.get_scaled_loss(loss), variables))
        else:
            found = tf.gradients(loss, variables)
        for gradient, variable in zip(found, variables, strict=True):
            if gradient is None:
                raise ValueError(f"optimizer.get_gradients: the loss does not depend on variable {variable.name}")
            recording.gradients[id(gradient)] = variable
            recording.kept.append(gradient)
        return list(found)

    def scaled(optimizer: Given, loss: Given) -> Result:
        recording.has_loss_scale = True
        return own_scaled[type(optimizer)](optimizer, loss)

    def tape(self: Given) -> Result:
        # Keras and TensorFlow use none while a step is traced; tf.py_function does, in a graph of its own.
        recording.has_tape = recording.has_tape or tf.compat.v1.get_default_graph() is graph
        return enter(self)

    optimizers = (tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer)
    before = [each.__dict__.get("get_gradients") for each in optimizers]
    own_scaled = {each: each.get_scaled_loss for each in LOSS_SCALE.__subclasses__()}
    layer_class.__call__, tape_class.__enter__ = call, tape
    for each in optimizers:
        each.get_gradients = gradients
    for each in own_scaled:
        each.get_scaled_loss = scaled
    try:
        yield recording
    finally:
        layer_class.__call__, tape_class.__enter__ = layer_call, enter
        for each, own in own_scaled.items():
            each.get_scaled_loss = own
        for each, old in zip(optimizers, before, strict=True):
            if old is None:
                del each.get_gradients
            else:
                each.get_gradients = old
