"""Checkpoints of a pipeline job: written by any number of stages, read into any other number.

`PipelineCheckpoints.save` writes one: a shard for each stage, each complete or absent (`shards.ShardStore.write`).
`PipelineCheckpoints.restore` reads one into the stages of this job (`shard_reader.ShardReader`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from algorun_train.loop.progress import LoopProgress
from algorun_train.parallel.shard.sharded_model import ShardMesh, Splits, own_share
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.host_copies import HostCopies

from . import finished
from .finished import Artifact
from .finite_state import refuse_broken
from .resumed import Resumed
from .shard_reader import ShardReader
from .shard_saver import ShardSaver, shard_state
from .sharded_state import sharded_state
from .shards import ShardStore
from .state_file import JobRecord, State


@dataclass(frozen=True, slots=True)
class SavedStage:
    """One stage of this rank. Parameters of `module` have the names of the uncut model."""

    index: int
    """the number of the stage, from 0"""
    module: torch.nn.Module
    saved_by_others: Collection[str] = ()
    """names of shared weights that an earlier stage saves"""


@dataclass(frozen=True, slots=True)
class RankStages:
    """The stages of this rank among `count` stages of the model."""

    count: int
    stages: Sequence[SavedStage]
    is_writer: bool
    """whether this replica writes: one does, because all replicas hold the same weights"""
    mesh: ShardMesh | None = None
    """the ranks that hold the other shares or parts of these stages, if there are some"""
    splits: Splits | None = None
    """the weights of which each rank of a tensor group has a part"""


class PipelineCheckpoints:
    """Writes and reads the checkpoints of one job. Call all methods on all ranks.

    `record` is what a checkpoint says about the job; the number of stages is not in it.
    """

    def __init__(
        self,
        store: ShardStore,
        record: JobRecord,
        held: RankStages,
        optimizer: torch.optim.Optimizer,
        comm: Communicator,
    ) -> None:
        self._store, self._record, self._held, self._optimizer = store, record, held, optimizer
        self._comm = comm
        self._saver = ShardSaver(store, comm, comm.say)

    def restore(self) -> Resumed | None:
        """Loads the newest complete checkpoint of all ranks' folders into this rank's stages; None if there is none.

        Raises UserError, the same on all ranks, if another job wrote it or it lacks a weight.
        """
        modules = [stage.module for stage in self._held.stages]
        held = {name: tensor for module in modules for name, tensor in module.state_dict(keep_vars=True).items()}
        splits = self._held.splits
        reader = ShardReader(self._store, self._comm, self._comm.say)
        restored = reader.newest(
            self._record.identity, held.__contains__, lambda name, whole: own_share(whole, held[name], name, splits)
        )
        if restored is None:
            return None
        restored.load_into(modules, self._optimizer, self._comm)
        self._saver.go_on_from(restored.save, restored.passed_over)
        return restored.described(self._store.root, self._comm)

    def save(self, progress: LoopProgress) -> None:
        """Starts to write a checkpoint. Training may change the weights as soon as this returns.

        Raises the error of the previous save, as `finish` does, and TrainingError for a state that is not finite.
        """
        step, held, mesh = progress.position.step, self._held, self._held.mesh
        modules = [stage.module for stage in held.stages]
        refuse_broken(self._comm, step, modules, self._optimizer, self._saver.newest)
        stages = held.stages if held.is_writer else ()
        if mesh is None:
            whole = {
                stage.index: shard_state(
                    self._record, progress, stage.module, self._optimizer, without=stage.saved_by_others
                )
                for stage in stages
            }
            self._saver.save(step, held.count, whole)
            return

        def copy(host: HostCopies) -> dict[int, State]:
            return {
                stage.index * mesh.members + mesh.member: sharded_state(
                    self._record,
                    progress,
                    stage.module,
                    self._optimizer,
                    mesh,
                    host,
                    stage.saved_by_others,
                    held.splits,
                )
                for stage in stages
            }

        self._saver.save_copies(step, held.count * mesh.members, copy)

    def finish(self) -> None:
        """Waits until all ranks have written the last checkpoint. Raises if one could not: on that rank its own error,
        elsewhere a RuntimeError that names the rank."""
        self._saver.finish()

    def artifact_written(self, artifact: Artifact) -> None:
        """Notes, beside the newest checkpoint, that its model is written. Call it on rank 0.
        Raises OSError."""
        if self._saver.newest is not None:
            finished.write(self._store.root, self._saver.newest, artifact)
