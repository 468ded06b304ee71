"""Saves checkpoints of several parts while training goes on."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import COLLECTIVE_TIMEOUT

from .shards import PartStore, Save, holders, lacking, newest_complete

LONGEST_WRITE_S = COLLECTIVE_TIMEOUT.total_seconds() * 0.9  # whoever waits for a disk gives up before its peers do
LEAST_STEP_S = 1e-3  # between two saves, should the clock have been put back


class PartSaver:
    """Copies state to the host's memory at once and writes it in a thread, which takes part in no collective.

    Whether a checkpoint is on all disks is seen at the next `save` or at `finish`; only then do older ones go.
    """

    def __init__(self, store: PartStore, comm: Communicator, say: Callable[[object], None]) -> None:
        self._store, self._comm, self._say = store, comm, say
        self._thread: threading.Thread | None = None
        self._save: Save | None = None
        self._error: BaseException | None = None
        self._seconds = 0.0

    def save(self, step: int, parts: int, states: Mapping[int, dict[str, Any]]) -> None:
        """Begins to save what this rank holds: {number of the part: state}, maybe nothing. On all ranks.

        Raises the error of the save before, as `finish` does. Tensors may change as soon as this returns.
        """
        newest = self.finish()
        time_of_save = self._comm.from_leader(lambda: max(time.time(), newest + LEAST_STEP_S))
        self._save = Save(time_of_save, step, parts)
        copies = {number: on_cpu(state) for number, state in states.items()}
        self._thread = threading.Thread(target=self._write, args=(self._save, copies), name="checkpoint", daemon=True)
        self._thread.start()

    def finish(self) -> float:
        """Waits until the last checkpoint is on all disks, and prunes. On all ranks; the last call before a job ends.

        Returns when the newest checkpoint was written. A rank that could not write raises its own error, the others
        a RuntimeError that names it.
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
                raise RuntimeError(f"checkpoint {save.folder} was saved and yet lacks {missing} of {save.parts} parts")
            self._store.prune(newest_complete([row[1] for row in rows], self._store.keep))
            self._comm.exchange([0.0])  # nobody writes the next parts to a folder in which another rank still prunes
            took_s = max(row[2] for row in rows)
            self._say(f"checkpoint: {self._store.root / save.folder} seconds: {took_s:.2f} waited: {waited_s:.2f}")
        return max((save.written for save in union), default=0.0)

    def _write(self, save: Save, copies: dict[int, dict[str, Any]]) -> None:
        begun = time.monotonic()
        try:
            for number in list(copies):
                self._store.write(save, number, copies.pop(number))
        except BaseException as error:
            self._error = error
        self._seconds = time.monotonic() - begun


def on_cpu(value: Any, known: dict[Any, torch.Tensor] | None = None) -> Any:
    """A copy of tensors in (nested) dictionaries and lists, in the host's memory; numbers and texts as they are.

    A tensor that is there under several names, as tied weights are, is copied once: a file then holds it once as well.
    `known` are the copies so far.
    """
    known = {} if known is None else known
    if isinstance(value, torch.Tensor):
        same = (value.data_ptr(), value.dtype, value.shape, value.stride()) if value.numel() else id(value)
        if same not in known:
            known[same] = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        return known[same]
    if isinstance(value, dict):
        return {key: on_cpu(each, known) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(on_cpu(each, known) for each in value)
    return value
