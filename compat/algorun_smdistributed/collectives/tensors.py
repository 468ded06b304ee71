"""Tensors of TensorFlow over ranks: reduced, gathered and copied, at once or as an operation of the script's tf.function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from algorun_smdistributed.script_types import Given, Result
from algorun_train.common.errors import UserError

from . import arrays
from .arrays import MEAN
from .script_ranks import ScriptRanks

Tensor = Any  # TensorFlow's objects have no types for mypy
Variable = Any
Array = Any
SUMS = (MEAN, "SUM")
_order: list[Variable] = []
"""one variable that all operations of this module change, so that TensorFlow runs them in the order of the script"""


def kind_of(call: str, op: str | None, names: str) -> str:
    """The kind of reduction that a script asks for, the mean by default. `names`: the script's names. Raises UserError."""
    kind = op or MEAN
    if kind not in (MEAN, "SUM", "MIN", "MAX"):
        raise UserError(f"{call}: op = {op!r}; allowed: {names}; fix: give one of them")
    return kind


def reduce(ranks: ScriptRanks, tensors: Sequence[Tensor], kind: str, call: str) -> list[Tensor]:
    """Each tensor, a tf.IndexedSlices too, over all ranks, of the same shape and type. On all of them.

    `kind` is one of arrays.reduced, `call` the script's, for errors. Gradients flow back through it, for sums and means. Raises
    UserError for types that cannot be reduced so, and on all ranks if they have different tensors.
    """
    dense = [tensor for tensor in tensors if not isinstance(tensor, tf.IndexedSlices)]
    for tensor in tensors:
        _check(tensor.dtype, call)
        if kind == MEAN and tensor.dtype.is_integer:
            raise UserError(
                f"{call}: the average of {tensor.dtype.name}; allowed: floating point; fix: tf.cast(.., tf.float32), or a sum"
            )
        if kind not in SUMS and isinstance(tensor, tf.IndexedSlices):
            raise UserError(
                f"{call}: {kind} of a tf.IndexedSlices; allowed: sums and means; fix: tf.convert_to_tensor(..)"
            )
    if ranks.here.group.size == 1:
        return list(tensors)
    left = iter(_dense(ranks, dense, kind, call) if dense else [])
    return [_slices(ranks, each, kind, call) if isinstance(each, tf.IndexedSlices) else next(left) for each in tensors]


def copy(ranks: ScriptRanks, tensors: Sequence[Tensor], root: int, call: str) -> list[Tensor]:
    """Each tensor as rank `root` has it. On all ranks, with the same shapes; errors as in `reduce`, and for a gradient of it."""
    group = ranks.here.group
    if not 0 <= root < group.size:
        raise UserError(f"{call}: root_rank is {root}; allowed: 0 .. {group.size - 1}; fix: give the number of a rank")
    for tensor in tensors:
        _check(tensor.dtype, call, also_bool=True)
    if group.size == 1:
        return list(tensors)
    what = f"{call} from rank {root} of {_text(tensors)}"

    def work(*given: Array) -> list[Array]:
        group.together(what)
        return [group.copy(array, what, root) for array in given]

    return _without_gradient(work, tensors, [tensor.shape for tensor in tensors], call)


def copy_variables(ranks: ScriptRanks, variables: Sequence[Variable], root: int, call: str) -> None:
    """Gives variables the values that they have on rank `root`. In a job of smp those of other partitions are left out."""
    own = [variable for variable in variables if ranks.here.is_here(variable)]
    if ranks.here.group.size == 1:
        return
    for variable, value in zip(own, copy(ranks, [tf.convert_to_tensor(v) for v in own], root, call), strict=True):
        variable.assign(value)


def _dense(ranks: ScriptRanks, tensors: Sequence[Tensor], kind: str, call: str) -> list[Tensor]:
    group = ranks.here.group
    what = f"{call}, {kind.lower()} of {_text(tensors)}"

    def work(*given: Array) -> list[Array]:
        group.together(what)
        return arrays.reduced(given, group, kind, what)

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def through(*given: Tensor) -> Result:
        def back(*gradients: Tensor) -> list[Tensor]:
            if kind not in SUMS:
                raise _no_gradient(call)
            return reduce(ranks, gradients, kind, f"the gradient of {call}")

        return _run(work, given, [tensor.shape for tensor in given]), back

    return list(through(*tensors))


def _slices(ranks: ScriptRanks, slices: Tensor, kind: str, call: str) -> Tensor:
    """Those of all ranks after one another, divided by their number for a mean."""
    group = ranks.here.group
    what = f"{call}, {kind.lower()} of slices {slices.dtype.name}{list(slices.values.shape[1:])}"

    def work(values: Array, indices: Array) -> list[Array]:
        rows = group.gathered((values, indices), what)
        found = np.concatenate([each for each, _ in rows])
        found = (found / group.size).astype(values.dtype) if kind == MEAN else found
        return [found, np.concatenate([each for _, each in rows])]

    shapes = [[None, *slices.values.shape[1:]], [None]]
    values, indices = _without_gradient(work, [slices.values, slices.indices], shapes, call)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _run(work: Callable[..., list[Array]], tensors: Sequence[Tensor], shapes: Sequence[Given]) -> list[Tensor]:
    """What `work` makes of the tensors' values: as many, of the same types."""
    if tf.executing_eagerly():
        found = work(*(tensor.numpy() for tensor in tensors))
        return [tf.constant(array, tensor.dtype) for array, tensor in zip(found, tensors, strict=True)]
    if not _order:
        with tf.init_scope():
            _order.append(tf.Variable(0, dtype=tf.int64, trainable=False))
    before = tf.identity(_order[0].assign_add(1))
    found = tf.numpy_function(lambda _, *given: work(*given), [before, *tensors], [tensor.dtype for tensor in tensors])
    with tf.control_dependencies(found):
        _order[0].assign_add(1)
    for tensor, shape in zip(found, shapes, strict=True):
        tensor.set_shape(shape)
    return list(found)


def _without_gradient(
    work: Callable[..., list[Array]], tensors: Sequence[Tensor], shapes: Sequence[Given], call: str
) -> list[Tensor]:
    """As `_run`. TensorFlow would take its gradient for nothing, in silence."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def through(*given: Tensor) -> Result:
        def back(*_: Tensor) -> list[Tensor]:
            raise _no_gradient(call)

        return _run(work, given, shapes), back

    return list(through(*tensors)) if tensors else []


def _no_gradient(call: str) -> UserError:
    return UserError(f"{call}: its gradient; allowed: that of a dense sum or mean; fix: tf.stop_gradient(..) around it")


def _check(dtype: Given, call: str, also_bool: bool = False) -> None:
    if not (dtype.is_floating or dtype.is_integer or dtype.is_complex or (also_bool and dtype.is_bool)):
        raise UserError(f"{call}: a tensor of {dtype.name}; allowed: numbers; fix: tf.cast(.., tf.int32)")


def _text(tensors: Sequence[Tensor]) -> str:
    return ", ".join(f"{tensor.dtype.name}{list(tensor.shape)}" for tensor in tensors)
