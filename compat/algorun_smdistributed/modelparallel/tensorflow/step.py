"""@smp.step: a function of one batch, run once per microbatch across the stages of the model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record

from algorun_smdistributed.modelparallel.graph.arguments import KerasStepFunction, StepCall
from algorun_smdistributed.modelparallel.graph.planned_step import KerasJob, PlannedStep, plan
from algorun_smdistributed.modelparallel.graph.replica_means import replica_means
from algorun_smdistributed.modelparallel.graph.tracing import TAPE
from algorun_smdistributed.script_types import Given, Result
from algorun_train.common.errors import UserError

from .session import job
from .step_output import joined

Tensor = Any  # TensorFlow's objects have no types for mypy


def step(
    function: Callable[..., Result] | None = None,
    *,
    non_split_inputs: Sequence[str] | None = None,
    input_split_axes: Mapping[str, int] | None = None,
    input_signature: Sequence[tf.TensorSpec] | None = None,
) -> Result:
    """Decorates a function of one forward (and backward) pass; see smp.step in AWS's documentation.

    `non_split_inputs` are arguments that every microbatch gets whole, `input_split_axes` the batch axes of arguments
    where it is not 0, `input_signature` the types and shapes that calls may have. Tensors that the function returns come as
    StepOutput, gradients of optimizer.get_gradients on the rank of their variable, averaged over the replicas, all
    others on all ranks of the pipeline. The batch is that of the pipeline's first rank.
    """

    def decorated(given: Callable[..., Result]) -> Callable[..., Result]:
        made = KerasStep(KerasStepFunction(given, non_split_inputs or (), input_split_axes or {}, input_signature))

        def call(*args: Given, **kwargs: Given) -> Result:
            try:
                return made(args, kwargs)
            except UserError as error:
                # In a tf.function AutoGraph would raise a StagingError in its place, whose first line is "in user code:".
                error.ag_pass_through = True  # type: ignore[attr-defined]
                raise

        # The script's own tf.function must not translate this package.
        return functools.update_wrapper(tf.autograph.experimental.do_not_convert(call), given)

    return decorated if function is None else decorated(function)


def register_post_partition_hook(hook: Callable[[], Result]) -> Callable[[], Result]:
    """Calls `hook` in the first call of an @smp.step function, once each rank has its partition and before the forward pass.

    Also as a decorator. UserError after that call.
    """
    if job().is_partitioned:
        raise UserError(
            "smp.register_post_partition_hook after the first step; allowed: before it; fix: register it beside the model"
        )
    job().hooks.append(hook)
    return hook


class KerasStep:
    """A decorated function with its signatures. Called on all ranks of a pipeline, equally often."""

    def __init__(self, function: KerasStepFunction) -> None:
        self._function = function
        self._planned: dict[tuple[Given, ...], PlannedStep] = {}
        self._order: tf.Variable | None = None

    def __call__(self, args: tuple[Given, ...], kwargs: dict[str, Given]) -> Result:
        here = job()
        if here.model is None:
            raise UserError(
                f"{self._function.name}: there is no model; fix: make the smp.DistributedModel before the first step"
            )
        if record.could_possibly_record():
            raise UserError(TAPE.replace("inside", "around"))
        call = self._function.call(args, kwargs, here.layout.microbatches)
        planned = self._planned.get(call.key)
        if planned is None:
            with tf.init_scope():
                planned = self._planned[call.key] = plan(here, self._function, call)
                here.is_partitioned = True
                while here.hooks:
                    here.hooks.pop(0)()
        batches = call.split()
        if here.world.size == 1:
            return joined(planned.structure, planned.run(batches), {})
        if tf.executing_eagerly():
            results, means = _together(here, call, planned, batches)
            means = [tf.constant(each) for each in means]
        else:
            results, means = self._in_graph(here, call, planned, batches)
        left = iter(means)
        return joined(
            planned.structure, results, {numbers: [next(left) for _ in numbers] for numbers in planned.gradients}
        )

    def _in_graph(
        self, here: KerasJob, call: StepCall, planned: PlannedStep, batches: Sequence[Sequence[Tensor]]
    ) -> tuple[list[list[Tensor]], list[Tensor]]:
        """The step as one operation of the script's tf.function.

        TensorFlow orders operations by the variables that they get, and this one gets none. So it waits for whatever
        changed this rank's variables before, and whatever changes or reads them later waits for it. `_order` keeps steps in
        the order of the function on all ranks.
        """
        if self._order is None:
            with tf.init_scope():
                self._order = tf.Variable(0, dtype=tf.int64, trainable=False)
        count, width = here.layout.microbatches, len(planned.tensors)

        def work(_: Given, *arrays: Given) -> list[Given]:
            size = len(arrays) // count
            given = [list(map(tf.constant, arrays[at * size : (at + 1) * size])) for at in range(count)] if size else []
            results, means = _together(here, call, planned, given or [[] for _ in range(count)])
            return [np.int64(0), *(each.numpy() for result in results for each in result), *means]

        # The first rank's batch counts; the others need not copy theirs.
        flat = [tensor for batch in batches for tensor in batch] if here.pipeline.rank == 0 else []
        with tf.control_dependencies([variable.read_value() for variable in planned.read]):
            before = tf.identity(self._order.assign_add(1))
            symbolic = [*planned.tensors] * count
            reduced = [planned.tensors[number] for numbers in planned.gradients for number in numbers]
            types = [tensor.dtype for tensor in (*symbolic, *reduced)]
            done, *found = tf.numpy_function(work, [before, *flat], [tf.int64, *types])
        with tf.control_dependencies([done]):
            self._order.assign_add(1)
            for variable in planned.read:
                variable.read_value()
            for variable in planned.changed:
                variable.assign(variable.read_value())
        found, means = found[: count * width], found[count * width :]
        for tensor, like in zip(found, symbolic, strict=True):
            tensor.set_shape(like.shape)
        lengths = [len(numbers) for numbers in planned.gradients for _ in numbers]
        for tensor, like, length in zip(means, reduced, lengths, strict=True):
            tensor.set_shape(like.shape if length == 1 else [None, *like.shape[1:]])
        return [found[at * width : (at + 1) * width] for at in range(count)], means


def _together(
    here: KerasJob, call: StepCall, planned: PlannedStep, batches: Sequence[Sequence[Tensor]]
) -> tuple[list[list[Tensor]], list[Tensor]]:
    """Runs the step, once all ranks of the pipeline are in it, and averages its gradients over the replicas: NumPy's arrays.

    UserError on all ranks of the pipeline if one is in another call.
    """
    here.pipeline.together(f"@smp.step {call.text}")
    results = planned.run(batches)
    if not planned.gradients:
        return results, []
    return results, replica_means(results, planned.gradients, here.replicas, call.name)
