"""Checkpoints of a data parallel job, written and read by any number of ranks, with the model sharded or not.

The files are those of shards.py: rank 0 writes one shard, or each rank of the first replica writes the whole tensors of
the names that it owns (sharded_state.py). Checkpoints of version 0.1.0 (single_file.py) are read as well.
"""

from collections.abc import Iterator
from pathlib import Path

import torch

from algorun_train.common.errors import UserError
from algorun_train.loop.progress import LoopProgress
from algorun_train.parallel.shard.sharded_model import ShardMesh, Splits, own_share
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.host_copies import HostCopies

from . import finished, single_file
from .finished import Artifact
from .finite_state import refuse_broken
from .optimizer_state import NamedState
from .resumed import Resumed
from .shard_reader import Diverged, Restored, ShardReader
from .shard_saver import ShardSaver, shard_state
from .sharded_state import owned_state, shard_of
from .shards import ShardStore, first_nan
from .state_file import (
    LOSSES,
    POSITION,
    JobRecord,
    State,
    compatible,
    does_not_fit,
    read_progress,
    read_record,
    resumed_line,
    unpack,
)


class DdpCheckpoints:
    """Writes and reads the checkpoints of one job. Call all methods on all ranks.

    `record` is what a checkpoint says about the job; the number of ranks and shards is not in it.
    `mesh` is None if every rank has the complete model. `splits`: the weights that ranks of a tensor group share.
    """

    def __init__(
        self,
        store: ShardStore,
        record: JobRecord,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        comm: Communicator,
        mesh: ShardMesh | None = None,
        splits: Splits | None = None,
    ) -> None:
        self._store, self._record, self._model, self._optimizer = store, record, model, optimizer
        self._comm, self._mesh, self._splits = comm, mesh, splits
        self._saver = ShardSaver(store, comm, comm.say)

    def restore(self) -> Resumed | None:
        """Loads the newest complete checkpoint of all ranks' folders into model and optimizer; None if there is none.

        Each rank keeps only its share of a tensor. Raises UserError, the same on all ranks, if another job wrote the
        checkpoint, it cannot be read, or all that are complete hold NaN.
        """
        restored = self._newest()
        if restored is None:
            return None
        restored.load_into([self._model], self._optimizer, self._comm)
        self._saver.go_on_from(restored.save, restored.passed_over)
        return restored.described(self._store.root, self._comm)

    def save(self, progress: LoopProgress) -> None:
        """Starts to write a checkpoint. Training may change the weights as soon as this returns.

        Raises the error of the previous save, as `finish` does, and TrainingError for a state that is not finite.
        """
        step, mesh = progress.position.step, self._mesh
        refuse_broken(self._comm, step, [self._model], self._optimizer, self._saver.newest)
        if mesh is None:
            writes = self._comm.is_leader
            whole = {0: shard_state(self._record, progress, self._model, self._optimizer)} if writes else {}
            self._saver.save(step, 1, whole)
            return

        def copy(host: HostCopies) -> dict[int, State]:
            if not mesh.is_first_replica:
                return {}
            state = owned_state(self._model, self._optimizer, mesh, host, splits=self._splits)
            return {mesh.member: shard_of(self._record, progress, state)}

        self._saver.save_copies(step, mesh.members, copy)

    def finish(self) -> None:
        """Waits until all ranks have written the last checkpoint. Raises if one could not: on that rank its own error,
        elsewhere a RuntimeError that names the rank."""
        self._saver.finish()

    def artifact_written(self, artifact: Artifact) -> None:
        """Notes, beside the newest checkpoint, that its model is written. Call it on rank 0.
        Raises OSError."""
        if self._saver.newest is not None:
            finished.write(self._store.root, self._saver.newest, artifact)

    def _keep(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """What this rank keeps of a tensor: of a weight or one of its moments its share, of a step count all."""
        like = self._model.state_dict(keep_vars=True)[name] if self._mesh else whole
        return own_share(whole, like, name, self._splits)

    def _newest(self) -> Restored | None:
        """The newest checkpoint that can be used, of this version or of 0.1.0; None if there is none."""
        wanted = self._model.state_dict()
        reader = ShardReader(self._store, self._comm, self._comm.say)
        try:
            restored = reader.newest(self._record.identity, wanted.__contains__, self._keep)
        except Diverged:
            older = self._of_one_file()
            if older is None:
                raise
            return older
        return restored or self._of_one_file()

    def _of_one_file(self) -> Restored | None:
        """The newest undamaged checkpoint of version 0.1.0 in rank 0's folder, read on all ranks; None if there is none.

        One that holds NaN is passed over with a warning. Raises UserError, the same on all ranks, if all of them do.
        """
        say = self._comm.say
        found = single_file.undamaged(self._store.root, lambda text: say(f"warning: {text}"))
        diverged: Diverged | None = None
        while (checkpoint := self._next_of_leader(found)) is not None:
            try:
                return self._unpacked(*checkpoint)
            except Diverged as error:
                diverged = diverged or error  # of the newest one
                say(f"warning: checkpoint {checkpoint[1]} is passed over: it holds NaN in {error.where}")
        if diverged is not None:
            raise diverged
        return None

    def _next_of_leader(self, found: Iterator[tuple[Path, bytes]]) -> tuple[bytes, str] | None:
        """The next checkpoint that rank 0 has `found`, on all ranks: the bytes of its state, and its folder."""
        own = next(found, None) if self._comm.is_leader else None
        where = self._comm.from_leader(lambda: str(own[0]) if own else "")
        packed = self._comm.bytes_from_leader(own[1] if own else None)
        return None if packed is None else (packed, where)

    def _unpacked(self, packed: bytes, where: str) -> Restored:
        """What this rank needs of a checkpoint of version 0.1.0. Raises UserError and Diverged, the same on all ranks."""
        saved = unpack(packed, where)
        try:
            compatible(read_record(saved).identity, self._record.identity, where)
            progress = read_progress(saved[POSITION], saved[LOSSES])
            optimizer = self._by_name(saved["optimizer"]["state"])
            if diverged := first_nan({"model": saved["model"], "optimizer": optimizer}):
                raise Diverged(where, f"{diverged} ({single_file.STATE})")
            weights = {name: self._keep(name, saved["model"][name]) for name in self._model.state_dict()}
            own = {
                name: {
                    key: self._keep(name, value) if isinstance(value, torch.Tensor) else value
                    for key, value in values.items()
                    if value is not None
                }
                for name, values in optimizer.items()
            }
        except UserError:
            raise
        except Exception as error:  # torch has no one class for values that do not fit
            raise does_not_fit(where, error) from None
        self._comm.say(resumed_line(where, progress))
        return Restored(where, progress, weights, own, options={})

    def _by_name(self, numbered: dict[int, dict[str, object]]) -> NamedState:
        """An optimizer's state by parameter name; `numbered` has it by the parameter's place in the optimizer's groups."""
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        order = [names[id(parameter)] for group in self._optimizer.param_groups for parameter in group["params"]]
        return {order[number]: values for number, values in numbered.items()}
