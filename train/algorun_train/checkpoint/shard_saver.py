"""Writes the shards of a checkpoint while training continues."""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from algorun_train.loop.progress import LoopProgress
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.host_copies import HostCopies
from algorun_train.ranks.join import COLLECTIVE_TIMEOUT

from .optimizer_state import named_state
from .shards import Save, ShardStore, holders, lacking, newest_complete
from .state_file import JobRecord, State

MODEL, OPTIMIZER = "model", "optimizer"  # keys of a shard's state
# A rank that waits for its disk gives up before its peers' collectives time out.
LONGEST_WRITE_S = COLLECTIVE_TIMEOUT.total_seconds() * 0.9
LEAST_STEP_S = 1e-3  # between the recorded times of two saves, even if the clock was set back


class ShardSaver:
    """Copies the state to the host's memory, then writes it in a thread. The thread takes part in no collective.

    The ranks learn at the next `save` or at `finish` whether all have written the checkpoint. Only then they remove older
    checkpoints.
    """

    def __init__(
        self, store: ShardStore, comm: Communicator, say: Callable[[object], None], host: HostCopies | None = None
    ) -> None:
        self._store, self._comm, self._say = store, comm, say
        self._host = host or HostCopies()
        self._thread: threading.Thread | None = None
        self._save: Save | None = None
        self._error: BaseException | None = None
        self._seconds = 0.0
        self.newest: Save | None = None
        """the last checkpoint that this job saved, or goes on from"""
        self._passed_over: tuple[Save, ...] = ()

    def go_on_from(self, save: Save | None, passed_over: tuple[Save, ...]) -> None:
        """The job goes on from this checkpoint. The next save removes the `passed_over` ones, which hold NaN: if they counted as
        kept, good ones would be removed in their place."""
        self.newest, self._passed_over = save, passed_over

    def save(self, step: int, shards: int, states: Mapping[int, State]) -> None:
        """Starts to write this rank's shards of a checkpoint. Call it on all ranks.

        `states` are this rank's shards by number; it may be empty. `shards` counts the shards of all ranks. The tensors may
        change as soon as this returns. Raises the error of the previous save, as `finish` does.
        """
        self.save_copies(step, shards, lambda host: {number: on_cpu(state, host) for number, state in states.items()})

    def save_copies(self, step: int, shards: int, copy: Callable[[HostCopies], dict[int, State]]) -> None:
        """As `save`, of states that `copy` makes, with tensors in the host's memory. It is called once the previous save is
        written, whose copies had the same memory; it need not wait for its own."""
        newest = self.finish()
        time_of_save = self._comm.from_leader(lambda: max(time.time(), newest + LEAST_STEP_S))
        self._save = self.newest = Save(time_of_save, step, shards)
        self._host.begin()
        copies = copy(self._host)
        self._host.wait()
        self._thread = threading.Thread(target=self._write, args=(self._save, copies), name="checkpoint", daemon=True)
        self._thread.start()

    def finish(self) -> float:
        """Waits until all ranks have written the last checkpoint, then removes older ones. Call it on all ranks, also once
        before the job ends.

        Returns the time of the newest checkpoint by rank 0's clock; 0 if there is none. If a rank could not write, it
        raises its own error, and all other ranks raise a RuntimeError that names it.
        """
        begun = time.monotonic()
        if self._thread is not None:
            self._thread.join(LONGEST_WRITE_S)
            if self._thread.is_alive():
                self._error = TimeoutError(f"the checkpoint was not written after {LONGEST_WRITE_S:.0f} s")
        waited_s = time.monotonic() - begun
        error, save = self._error, self._save
        self._thread, self._save, self._error = None, None, None
        text = f"{type(error).__name__}: {error}" if error is not None else None
        rows = self._comm.gather((text, self._store.found()[0], self._seconds))
        if error is not None:
            raise error
        if failed := [(rank, row[0]) for rank, row in enumerate(rows) if row[0] is not None]:
            raise RuntimeError(f"rank {failed[0][0]} failed to save a checkpoint: {failed[0][1]}")
        union = holders([row[1] for row in rows])
        if save is not None:
            if missing := lacking(save, union.get(save, {})):
                raise RuntimeError(
                    f"checkpoint {save.folder} was saved and yet lacks {missing} of {save.shards} shards; another job that "
                    f"writes to {self._store.root} may have removed them"
                )
            self._store.prune(newest_complete([row[1] for row in rows], self._store.keep, self._passed_over))
            self._comm.exchange([0.0])  # no rank writes the next shards to a folder in which another rank still prunes
            took_s = max(row[2] for row in rows)
            self._say(f"checkpoint: {self._store.root / save.folder} seconds: {took_s:.2f} waited: {waited_s:.2f}")
        return max((save.written for save in union), default=0.0)

    def _write(self, save: Save, copies: dict[int, State]) -> None:
        begun = time.monotonic()
        try:
            for number in list(copies):
                self._store.write(save, number, copies.pop(number))
        except BaseException as error:
            self._error = error
        self._seconds = time.monotonic() - begun


def shard_state(
    record: JobRecord,
    progress: LoopProgress,
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    without: Collection[str] = (),
) -> State:
    """The state of one shard: weights and optimizer state of the stage `module`, by the uncut model's names.

    `without`: names of shared weights that another shard holds. `optimizer` may have parameters of other stages too.
    """
    named = ((name, parameter) for name, parameter in module.named_parameters() if name not in without)
    return {
        **record.state(progress),
        MODEL: {name: tensor for name, tensor in module.state_dict().items() if name not in without},
        OPTIMIZER: named_state(optimizer, named),
    }


def on_cpu(value: Any, host: HostCopies, known: dict[object, torch.Tensor] | None = None) -> Any:
    """A copy of a state: dictionaries, lists, and every tensor in the host's memory, of those on a GPU once `host` has waited.

    A tensor with several names, such as tied weights, is copied once, so the file holds it once. `known` are the copies
    made so far. Any: whatever a state holds.
    """
    known = {} if known is None else known
    if isinstance(value, torch.Tensor):
        same = (value.data_ptr(), value.dtype, value.shape, value.stride()) if value.numel() else id(value)
        if same not in known:
            known[same] = host.copy(value)
        return known[same]
    if isinstance(value, dict):
        return {key: on_cpu(each, host, known) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(on_cpu(each, host, known) for each in value)
    return value
