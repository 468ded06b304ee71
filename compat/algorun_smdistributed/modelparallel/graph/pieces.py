"""Pieces of a traced graph, each copied into a function of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import wrap_function
from tensorflow.python.framework import func_graph

from .tracing import TracedStep

Operation = Any  # TensorFlow's objects have no types for mypy
Tensor = Any
LEFT_OUT = ("_class",)  # a colocation may name an operation of another piece


def piece(
    traced: TracedStep,
    name: str,
    operations: Sequence[Operation],
    feeds: Sequence[Tensor],
    fetches: Sequence[Tensor],
    effects: Iterable[Operation],
) -> Any:  # TensorFlow's function: tensors in the order of `feeds` -> a list in the order of `fetches`
    """A function of its own with copies of `operations`, in the graph's order; constants are copied as needed.

    `WrappedFunction.prune` follows control inputs out of the piece; a copy drops those that lead elsewhere.
    """
    source = traced.graph
    external = {internal.name: outside for outside, internal in source.captures}
    graph = func_graph.FuncGraph(name)
    tensors: dict[str, Tensor] = {}
    copies: dict[str, Operation] = {}

    def here(tensor: Tensor) -> Tensor:
        if tensor.name not in tensors:
            if tensor.name in external:
                tensors[tensor.name] = graph.capture(external[tensor.name])
            else:
                copy(tensor.op)
        return tensors[tensor.name]

    def copy(op: Operation) -> None:
        if op.name in copies:
            return
        inputs = [here(tensor) for tensor in op.inputs]
        controls = [copies[each.name] for each in op.control_inputs if each.name in copies]
        attributes = {key: op.node_def.attr[key] for key in op.node_def.attr if key not in LEFT_OUT}
        with tf.control_dependencies(None), tf.control_dependencies(controls):
            made = graph._create_op_internal(
                op.type,
                inputs,
                [tensor.dtype for tensor in op.outputs],
                name=op.name,
                attrs=attributes,
                op_def=op.op_def,
            )
        copies[op.name] = made
        for old, new in zip(op.outputs, made.outputs, strict=True):
            tensors[old.name] = new
            new.set_shape(old.shape)

    with graph.as_default():
        for tensor in feeds:
            tensors[tensor.name] = tf.compat.v1.placeholder(tensor.dtype, tensor.shape)
            graph.inputs.append(tensors[tensor.name])
        for function in source._functions.values():
            graph._add_function(function)
        for op in operations:
            copy(op)
        graph.outputs.extend(here(tensor) for tensor in fetches)
        graph.control_outputs.extend(copies[op.name] for op in effects)
    graph.structured_outputs = list(graph.outputs)
    graph.structured_input_signature = None
    for variable in source.variables:
        graph.watch_variable(variable)
    made = wrap_function.WrappedFunction(graph, variable_holder=wrap_function.VariableHolder())
    made._num_positional_args = len(feeds)
    made._arg_keywords = [tensor.op.name for tensor in graph.inputs[: len(feeds)]]
    return made
