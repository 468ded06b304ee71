"""smp.DistributedModel: a Keras model whose layers lie on several ranks."""

from __future__ import annotations

import contextlib
from typing import Any

import tf_keras

from algorun_smdistributed.script_types import Given, Result
from algorun_train.common.errors import UserError

from . import checkpoints
from .session import job

Variable = Any  # TensorFlow's objects have no types for mypy
WHOLE = (
    "save", "save_weights", "load_weights", "get_weights", "set_weights", "export", "compile", "fit", "evaluate", "predict",
    "train_on_batch", "test_on_batch", "predict_on_batch",
)  # fmt: skip


class DistributedModel(tf_keras.Model):  # type: ignore[misc]  # TensorFlow has no types
    """Base class of the script's model, as AWS's documentation has it: layers in __init__, their order in call().

    The first call of an @smp.step function chooses the ranks of the direct layers. After it `variables`,
    `trainable_variables` and the like are those of this rank.
    """

    def __init__(self, *args: Given, **kwargs: Given) -> None:
        super().__init__(*args, **kwargs)
        if job().model is not None:
            raise UserError(
                "smp.DistributedModel: a second model; allowed: one in a job; fix: put both into one DistributedModel"
            )
        job().model = self

    def __call__(self, *args: Given, **kwargs: Given) -> Result:
        """Calls the model; with several partitions only inside an @smp.step function."""
        if job().layout.grid.pp > 1 and not job().tracing:
            raise UserError(
                "smp.DistributedModel called outside of an @smp.step function, on one of several partitions; allowed: inside; "
                "fix: decorate the function that calls it with @smp.step, also for evaluation"
            )
        return super().__call__(*args, **kwargs)

    def all_variables(self) -> list[Variable]:
        """The variables of all ranks. Those of other ranks cannot be read."""
        return list(super().weights)

    @property
    def trainable_weights(self) -> list[Variable]:
        """Those of this rank, once the model is cut."""
        return self._own(super().trainable_weights)

    @property
    def non_trainable_weights(self) -> list[Variable]:
        """Those of this rank, once the model is cut."""
        return self._own(super().non_trainable_weights)

    @property
    def weights(self) -> list[Variable]:
        """Those of this rank, once the model is cut."""
        return self._own(super().weights)

    def save_model(self, save_path: str = "/opt/ml/model") -> None:
        """Writes the whole model to a folder, in TensorFlow's SavedModel format. Call it on all ranks, after a step.

        Rank 0 gets the variables of all partitions, so its memory must suffice for the model, and writes. Raises UserError on
        all ranks if Keras cannot save the model.
        """
        here = job()
        checkpoints.whole(here, "model.save_model", self.all_variables(), lambda: self._save(save_path))

    def _save(self, path: str) -> None:
        here = job()
        here.tracing = True
        held = contextlib.nullcontext() if here.placement is None else here.placement.whole(self.all_variables())
        try:
            with held:
                super().save(path)
        finally:
            here.tracing = False

    def _own(self, variables: list[Variable]) -> list[Variable]:
        here = job()
        if here.placement is None or here.tracing:
            return list(variables)
        return [variable for variable in variables if here.placement.is_own(variable)]


def _only_whole(name: str) -> None:
    if job().layout.grid.pp > 1:
        raise UserError(
            f"smp.DistributedModel.{name}: with {job().layout.grid.pp} partitions; allowed: with 1; fix: save_model for the "
            "whole model, smp.CheckpointManager for checkpoints, an @smp.step function for training and evaluation"
        )


def _guarded(name: str) -> Any:  # a method of Keras
    whole = getattr(tf_keras.Model, name)

    def method(self: DistributedModel, *args: Given, **kwargs: Given) -> Result:
        _only_whole(name)
        return whole(self, *args, **kwargs)

    method.__name__, method.__doc__ = (
        name,
        f"Keras' own with one partition; UserError with several, see `tf.keras.Model.{name}`.",
    )
    return method


for _name in WHOLE:
    setattr(DistributedModel, _name, _guarded(_name))
