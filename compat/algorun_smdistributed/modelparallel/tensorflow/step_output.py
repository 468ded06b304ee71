"""What the microbatches of a step return, as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from algorun_smdistributed.modelparallel.graph.planned_step import Leaf
from algorun_smdistributed.script_types import Result
from algorun_train.common.errors import UserError

Tensor = Any  # TensorFlow's objects have no types for mypy


class StepOutput:
    """A tensor, or a tf.IndexedSlices, that every microbatch has computed."""

    def __init__(self, outputs: list[Tensor]) -> None:
        self._outputs = outputs

    @property
    def outputs(self) -> list[Tensor]:
        """The tensors, by microbatch."""
        return self._outputs

    def reduce_sum(self) -> Tensor:
        """Their sum, of the same shape; slices come together as one tf.IndexedSlices."""
        first = self._outputs[0]
        if isinstance(first, tf.IndexedSlices):
            return tf.IndexedSlices(
                tf.concat([each.values for each in self._outputs], 0),
                tf.concat([each.indices for each in self._outputs], 0),
                first.dense_shape,
            )
        return tf.add_n(self._outputs)

    def reduce_mean(self) -> Tensor:
        """Their mean, of the same shape; whole numbers give float32."""
        total = self.reduce_sum()
        if isinstance(total, tf.IndexedSlices):
            return tf.IndexedSlices(total.values / len(self._outputs), total.indices, total.dense_shape)
        if total.dtype.is_integer:
            total = tf.cast(total, tf.float32)
        return total / len(self._outputs)

    def accumulate(self, method: str = "variable", var: tf.Variable | None = None) -> Tensor:
        """For gradients: their mean, as `reduce_mean`. `method` and `var` tune the closed library, and have no effect."""
        return self.reduce_mean()

    def concat(self) -> Tensor:
        """All after one another along axis 0. UserError for tensors without dimensions."""
        if isinstance(self._outputs[0], tf.IndexedSlices):
            raise UserError("StepOutput.concat: gradients that are slices; fix: accumulate()")
        if self._outputs[0].shape.rank == 0:
            raise UserError(
                "StepOutput.concat: the tensors have no batch dimension; allowed: one or more; fix: stack(), or "
                "reduce_mean() for a loss"
            )
        return tf.concat(self._outputs, 0)

    def merge(self) -> Tensor:
        """As `concat`: the predictions of the whole batch."""
        return self.concat()

    def stack(self) -> Tensor:
        """All under one another, with the microbatch as axis 0."""
        return tf.stack(self._outputs)

    def __repr__(self) -> str:
        return f"StepOutput({self._outputs!r})"


class ReplicaGradient(StepOutput):
    """A gradient with replicas: its mean over the microbatches of all of them. Those of one microbatch cannot be had."""

    def __init__(self, mean: Tensor, microbatches: int) -> None:
        super().__init__([])
        self._mean, self._microbatches = mean, microbatches

    @property
    def outputs(self) -> list[Tensor]:
        """UserError: replicas would differ after a step with them."""
        raise _of_replicas("outputs")

    def reduce_sum(self) -> Tensor:
        """The mean times the number of microbatches."""
        mean, count = self._mean, self._microbatches
        if isinstance(mean, tf.IndexedSlices):
            return tf.IndexedSlices(mean.values * count, mean.indices, mean.dense_shape)
        return mean * count

    def reduce_mean(self) -> Tensor:
        """The mean over the microbatches of all replicas."""
        return self._mean

    def concat(self) -> Tensor:
        """UserError, as `outputs`."""
        raise _of_replicas("concat")

    def stack(self) -> Tensor:
        """UserError, as `outputs`."""
        raise _of_replicas("stack")

    def __repr__(self) -> str:
        return f"ReplicaGradient({self._mean!r})"


def _of_replicas(name: str) -> UserError:
    return UserError(
        f"StepOutput.{name} of a gradient with replicas; allowed: accumulate(), reduce_mean() and reduce_sum(), which average over "
        "the replicas; fix: accumulate()"
    )


def joined(
    structure: Result, results: Sequence[Sequence[Tensor]], means: Mapping[tuple[int, ...], Sequence[Tensor]]
) -> Result:
    """What the function returned, with a StepOutput for each tensor, from the tensors of each microbatch.

    Gradients of other ranks' variables leave their list or dictionary, so that it has those of model.trainable_variables.
    Other values come as a list by microbatch; None stays None. `means`: by the numbers of a gradient's tensors, with
    replicas.
    """
    if isinstance(structure, Leaf):
        return _leaf(structure, results, means)
    if isinstance(structure, dict):
        return {key: joined(each, results, means) for key, each in structure.items() if not _is_elsewhere(each)}
    if hasattr(structure, "_fields"):
        return type(structure)(*(joined(each, results, means) for each in structure))
    return type(structure)(joined(each, results, means) for each in structure if not _is_elsewhere(each))


def _is_elsewhere(each: Result) -> bool:
    return isinstance(each, Leaf) and each.is_elsewhere


def _leaf(leaf: Leaf, results: Sequence[Sequence[Tensor]], means: Mapping[tuple[int, ...], Sequence[Tensor]]) -> Result:
    if not leaf.tensors:
        return None if leaf.is_elsewhere or leaf.value is None else [leaf.value] * len(results)
    if leaf.is_gradient and (mean := means.get(leaf.tensors[:2])):
        shape = [results[0][number] for number in leaf.tensors[2:]]
        return ReplicaGradient(tf.IndexedSlices(*mean, *shape) if leaf.is_slices else mean[0], len(results))
    found = [[result[number] for number in leaf.tensors] for result in results]
    return StepOutput([tf.IndexedSlices(*parts) if leaf.is_slices else parts[0] for parts in found])
