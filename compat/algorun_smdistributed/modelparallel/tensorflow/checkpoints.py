"""smp.CheckpointManager: checkpoints of the whole model, in TensorFlow's own form, from ranks that have a part of it each.

Rank 0 gets the variables of all partitions and writes. So plain tf.train.Checkpoint reads these files, and a job resumes from
them with any number of partitions, or none.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from algorun_smdistributed.modelparallel.graph import slots
from algorun_smdistributed.modelparallel.graph.planned_step import KerasJob
from algorun_smdistributed.script_types import Result
from algorun_train.common.errors import UserError

from .session import job

Variable = Any  # TensorFlow's objects have no types for mypy
FOLDER = "/opt/ml/checkpoints"
VALUES = 0  # tag of the messages


class CheckpointManager(tf.train.CheckpointManager):  # type: ignore[misc]  # TensorFlow has no types
    """TensorFlow's CheckpointManager for a model in partitions. Make it, save and restore on all ranks.

    `checkpoint` is a tf.train.Checkpoint with the same objects on all ranks, `max_to_keep` the number of checkpoints to keep
    (None: all). Of replicas the first one is saved. `latest_checkpoint` and `checkpoints` are read from the folder of this
    rank's host.
    """

    def __init__(
        self,
        checkpoint: tf.train.Checkpoint,
        directory: str | os.PathLike[str] = FOLDER,
        max_to_keep: int | None = None,
        checkpoint_name: str = "ckpt",
    ) -> None:
        if not isinstance(checkpoint, tf.train.Checkpoint):
            raise UserError(
                f"smp.CheckpointManager: checkpoint is a {type(checkpoint).__name__}; allowed: a tf.train.Checkpoint; "
                "fix: tf.train.Checkpoint(optimizer=optimizer, model=model)"
            )
        super().__init__(checkpoint, os.fspath(directory), max_to_keep, checkpoint_name=checkpoint_name)
        self._file_prefix = str(Path(directory) / checkpoint_name)
        job().saved_partition.others.append(Path(directory))

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint in the folder, without endings; None if there is none."""
        is_writer = job().world.rank == 0  # TensorFlow asks while it saves, when the folder does not say it yet
        newest: str | None = super().latest_checkpoint if is_writer else tf.train.latest_checkpoint(self.directory)
        return newest

    @property
    def checkpoints(self) -> list[str]:
        """The paths of the checkpoints in the folder, from oldest to newest."""
        if job().world.rank == 0:
            return list(super().checkpoints)
        state = tf.train.get_checkpoint_state(self.directory)
        return list(state.all_model_checkpoint_paths) if state else []

    def save(self) -> str:
        """Writes a checkpoint, of the whole model, and returns its path without endings. On all ranks.

        Rank 0 writes; the memory of its host must suffice for the model with its optimizer. Raises UserError, on all ranks
        of the pipeline, for an optimizer that has variables of one rank only, and if rank 0 cannot write.
        """
        _only_eager("save")
        here = job()
        reachable = tf.train.TrackableView(self.checkpoint).descendants()
        number = int(self.checkpoint.save_counter) + 1
        path = f"{self._file_prefix}-{number}"

        def write() -> None:
            for each in reachable:
                _check_optimizer(here, each)
            super(CheckpointManager, self).save()
            here.saved_partition.keep(Path(self.directory))

        whole(here, "smp.CheckpointManager.save", reachable, write)
        self.checkpoint.save_counter.assign(number)
        return path

    def restore(self, restore_prefix: str | None = None) -> Result:
        """Reads the newest checkpoint of rank 0's folder, or the one named, such as "ckpt-3", on all ranks; TensorFlow's status.

        Before the first step, variables get their values as they are made; after it at once. Without a checkpoint nothing
        happens. Raises UserError on all ranks if one of them does not see the files, and for an optimizer that has the variables
        of one rank only.
        """
        return self._read(None if restore_prefix is None else str(Path(self.directory) / restore_prefix))[0]

    def restore_or_initialize(self) -> str | None:
        """As `restore`; returns the path of the checkpoint, None without any."""
        return self._read(None)[1]

    def _read(self, named: str | None) -> tuple[Result, str | None]:
        """TensorFlow's status, and the path of the checkpoint that was read."""
        _only_eager("restore")
        here = job()
        what = "smp.CheckpointManager.restore"
        path = here.world.from_first(lambda: named or self.latest_checkpoint, what)
        if path is None:
            return self.checkpoint.restore(None), None
        reachable = tf.train.TrackableView(self.checkpoint).descendants()

        def check() -> None:
            _check_there(path, here.world.rank)
            for each in reachable:
                _check_restored(here, each)

        here.world.on_all(check, what)
        placement = here.placement
        if placement is None:
            return here.world.on_all(lambda: self.checkpoint.restore(path), what), path
        placement.is_restoring = True
        try:
            return here.world.on_all(lambda: self.checkpoint.restore(path), what), path
        finally:
            placement.is_restoring = False


def whole(here: KerasJob, what: str, objects: Sequence[Any], write: Callable[[], None]) -> None:  # Any: TensorFlow's
    """Calls `write` on rank 0, while variables of other partitions among `objects` have their values there. On all ranks.

    Other replicas than the first have nothing to do. Raises UserError on all ranks of the pipeline if `write` fails.
    """
    if here.layout.grid.place(here.world.rank)[0] != 0:
        return
    placement, pipeline = here.placement, here.pipeline
    wanted = {id(each) for each in objects}
    # Legacy optimizers do not show their variables as their parts.
    legacy = any(isinstance(each, slots.LEGACY) for each in objects)
    there = [] if placement is None else placement.elsewhere()
    there = [(variable, stage) for variable, stage in there if legacy or id(variable) in wanted]
    names = hashlib.sha256("|".join(variable.name for variable, _ in there).encode()).hexdigest()[:8]
    pipeline.together(f"{what} of {len(there)} variables elsewhere, {names}")
    for variable, stage in there:
        if stage == pipeline.rank:
            pipeline.post(variable.numpy(), 0, VALUES, variable.name)
            pipeline.all_sent()
        elif pipeline.rank == 0 and placement is not None:
            placement.brought[id(variable.handle)] = pipeline.receive(stage, VALUES, f"variable {variable.name}")
    try:
        pipeline.from_first(write, what)
    finally:
        if placement is not None:
            placement.brought.clear()


def _check_optimizer(here: KerasJob, each: Any) -> None:  # any object of TensorFlow
    if here.placement is None or not isinstance(each, slots.OPTIMIZERS):
        return
    if not any(each is known for known in here.optimizers) and slots.has_some(each):
        raise _is_partial(each)


def _check_restored(here: KerasJob, each: Any) -> None:  # any object of TensorFlow
    """TensorFlow restores an optimizer's variables by their numbers, which are others where it has some of them."""
    if here.layout.grid.pp > 1 and isinstance(each, slots.OPTIMIZERS) and not slots.can_be_whole(each):
        raise _is_partial(each)


def _is_partial(optimizer: Any) -> UserError:
    return UserError(
        f"smp.CheckpointManager: {type(optimizer).__name__} has the variables of one partition only; allowed: an optimizer whose "
        "own get_gradients an @smp.step function has called, without use_ema and without a loss scale; fix: leave it out of "
        "the tf.train.Checkpoint, or call its get_gradients"
    )


def _check_there(path: str, rank: int) -> None:
    if not Path(f"{path}.index").is_file():
        raise UserError(
            f"smp.CheckpointManager.restore: rank {rank} does not see {path}.index; allowed: a checkpoint that every host has; "
            "fix: checkpoint_s3_uri in the estimator, which copies it to all hosts at the start, or a folder that they share"
        )


def _only_eager(name: str) -> None:
    if not tf.executing_eagerly():
        raise UserError(
            f"smp.CheckpointManager.{name} inside a tf.function; allowed: outside; fix: call it in the loop around"
        )
