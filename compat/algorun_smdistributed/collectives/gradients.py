"""Gradients over ranks: a tape and an optimizer that reduce them."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from algorun_smdistributed.script_types import Given, Result
from algorun_train.common.errors import UserError

Tensor = Any  # TensorFlow's objects have no types for mypy
Optimizer = Any
Reduce = Callable[[Sequence[Tensor]], list[Tensor]]
"""the gradients of this rank -> those of all ranks"""
REDUCED = "reduces_over_ranks"


class ReducedTape:
    """A tf.GradientTape, whose `gradient` gives the gradients of all ranks. Everything else is the tape's own."""

    def __init__(self, tape: tf.GradientTape, reduce: Reduce) -> None:
        self._tape, self._reduce = tape, reduce

    def __enter__(self) -> ReducedTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._tape.__exit__(*error)

    def __getattr__(self, name: str) -> Any:  # whatever the tape has
        return getattr(self._tape, name)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def gradient(self, target: Given, sources: Given, *args: Given, **kwargs: Given) -> Result:
        """As tf.GradientTape.gradient, reduced. On all ranks; None stays None."""
        found = self._tape.gradient(target, sources, *args, **kwargs)
        return tf.nest.pack_sequence_as(found, _all(tf.nest.flatten(found), self._reduce))


def reducing(optimizer: Optimizer, reduce: Reduce, call: str) -> Optimizer:
    """The same Keras optimizer, which from here on reduces gradients before it applies them.

    Its class becomes one of the same name below its own, so a saved model knows it. UserError for anything else, and for an
    optimizer around another one.
    """
    kind = type(optimizer)
    # Keras 3 applies gradients in `apply` alone, which `apply_gradients` calls.
    name = next((each for each in ("apply", "apply_gradients") if callable(getattr(kind, each, None))), None)
    if name is None or not hasattr(optimizer, "learning_rate") or isinstance(optimizer, type):
        raise UserError(
            f"{call}: a {kind.__module__}.{kind.__name__}; allowed: an optimizer of Keras; fix: tf.keras.optimizers, or "
            "DistributedGradientTape"
        )
    if hasattr(optimizer, "inner_optimizer"):
        raise UserError(
            f"{call}: {kind.__name__} around another optimizer; allowed: the inner one; fix: wrap that one, and then "
            f"{kind.__name__}(..) around it"
        )
    if getattr(optimizer, REDUCED, False):
        return optimizer
    own = getattr(kind, name)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def apply(self: Optimizer, given: Given, *args: Given, **kwargs: Given) -> Result:
        if name == "apply":
            return own(self, _all(list(given), reduce), *args, **kwargs)
        pairs = list(given)
        gradients = _all([gradient for gradient, _ in pairs], reduce)
        return own(self, zip(gradients, [variable for _, variable in pairs], strict=True), *args, **kwargs)

    members = {name: apply, REDUCED: True, "__module__": kind.__module__}
    optimizer.__class__ = types.new_class(kind.__name__, (kind,), exec_body=lambda space: space.update(members))
    return optimizer


def _all(gradients: Sequence[Tensor], reduce: Reduce) -> list[Tensor]:
    left = iter(reduce([gradient for gradient in gradients if gradient is not None]))
    return [None if gradient is None else next(left) for gradient in gradients]
