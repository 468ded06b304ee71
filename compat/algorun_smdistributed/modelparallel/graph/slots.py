"""The variables of optimizers, such as moments: made for the whole model on every rank, which then keeps those of its stage.

So an optimizer looks the same on all ranks and in one process, and a checkpoint has one form for any number of partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from algorun_smdistributed.script_types import Given, Result

Optimizer = Any  # TensorFlow's objects have no types for mypy
Variable = Any
LEGACY = tf_keras.optimizers.legacy.Optimizer
OPTIMIZERS = (tf_keras.optimizers.Optimizer, LEGACY)


def make(optimizer: Optimizer, variables: Sequence[Variable]) -> list[tuple[Variable, Variable]]:
    """Makes an optimizer's variables for these of the model, unless it has them. Returns each with its variable of the model."""
    with tf.init_scope():
        if isinstance(optimizer, LEGACY):
            optimizer._create_all_weights(variables)
            names = optimizer.get_slot_names()
            return [(optimizer.get_slot(variable, name), variable) for variable in variables for name in names]
        made: list[tuple[Variable, Variable]] = []
        add = optimizer.add_variable_from_reference

        def recorded(model_variable: Variable, *args: Given, **kwargs: Given) -> Result:
            slot = add(model_variable, *args, **kwargs)
            made.append((slot, model_variable))
            return slot

        optimizer.add_variable_from_reference = recorded
        try:
            optimizer.build(variables)
        finally:
            del optimizer.add_variable_from_reference
        return made


def can_be_whole(optimizer: Optimizer) -> bool:
    """False with use_ema, where Keras wants all variables in each call, and for an optimizer around another one."""
    return not getattr(optimizer, "use_ema", False) and not hasattr(optimizer, "inner_optimizer")


def has_some(optimizer: Optimizer) -> bool:
    """Whether it has made variables for those of a model."""
    if isinstance(optimizer, LEGACY):
        return bool(optimizer.get_slot_names())
    own = {id(optimizer.iterations), id(getattr(optimizer, "_learning_rate", None))}
    return any(id(variable) not in own for variable in optimizer.variables)
