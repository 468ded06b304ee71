"""Checkpoints of a data parallel job: rank 0 writes the state of the whole model, and sends it to all ranks on resume."""

import time
from dataclasses import asdict

import torch

from algorun_train.common.errors import UserError
from algorun_train.loop.progress import Progress
from algorun_train.ranks.communicator import Communicator

from .single_file import SingleFileStore
from .state_file import FORMAT, Identity, State, compatible, does_not_fit, read_progress, resumed_line, unpack


def model_and_optimizer_state(
    identity: Identity, progress: Progress, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> State:
    """Everything that a job needs to resume. Learning rate, order of samples and random numbers follow from the position
    and the seed, so they are not saved."""
    return {
        "format": FORMAT,
        "identity": identity,
        "position": asdict(progress.position),
        "losses": progress.losses,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }


class DdpCheckpoints:
    """Writes and reads the checkpoints of one job. Call all methods on all ranks.

    `identity` is what a checkpoint and the job that resumes it must have in common.
    """

    def __init__(
        self,
        store: SingleFileStore,
        identity: Identity,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        comm: Communicator,
    ) -> None:
        self._store, self._identity, self._model, self._optimizer = store, identity, model, optimizer
        self._comm = comm

    def restore(self) -> Progress | None:
        """Loads the newest undamaged checkpoint of rank 0's folder into model and optimizer; None if there is none.

        All ranks get rank 0's copy, so hosts may share a folder or have one each. Raises UserError, the same on all
        ranks, if another job wrote the checkpoint or it cannot be read.
        """
        say = self._comm.say
        found = self._store.newest(lambda text: say(f"warning: {text}")) if self._comm.is_leader else None
        folder = self._comm.from_leader(lambda: str(found[0]) if found else "")
        packed = self._comm.bytes_from_leader(found[1] if found else None)
        if packed is None:
            return None
        saved = unpack(packed, folder)
        try:
            compatible(dict(saved["identity"]), self._identity, folder)
            progress = read_progress(saved["position"], saved["losses"])
            self._model.load_state_dict(saved["model"])
            self._optimizer.load_state_dict(saved["optimizer"])
        except UserError:
            raise
        except Exception as error:  # torch has no one class for values that do not fit
            raise does_not_fit(folder, error) from None
        say(resumed_line(folder, progress))
        return progress

    def save(self, progress: Progress) -> None:
        """Writes a checkpoint; all ranks wait until it is on rank 0's disk. If that fails, rank 0 raises the error and the other
        ranks a RuntimeError that names it."""
        begin = time.perf_counter()
        state = model_and_optimizer_state(self._identity, progress, self._model, self._optimizer)
        folder = self._comm.from_leader(lambda: str(self._store.save(progress.position.step, state)))
        self._comm.say(f"checkpoint: {folder} seconds: {time.perf_counter() - begin:.2f}")

    def finish(self) -> None:
        """Does nothing: `save` returns when everything is written."""
