"""What a checkpoint holds of a data parallel job, and how all ranks come back to it."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from algorun_train.errors import UserError
from algorun_train.loop.loop import Position, Progress
from algorun_train.ranks.communicator import Communicator

from . import store as checkpoint


def state(
    identity: dict[str, Any], progress: Progress, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """All that `restore` needs. Learning rates, orders of samples and random streams are functions of the position and
    the seed, so they are not in it."""
    return {
        "format": checkpoint.FORMAT,
        "identity": identity,
        "position": asdict(progress.position),
        "losses": progress.losses,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }


def read_progress(position: dict[str, Any], losses: list[Any]) -> Progress:
    """How far the job was. Raises TypeError or ValueError on what `state` does not write."""
    if not all(type(value) is int and value >= 0 for value in position.values()):
        raise ValueError(f"position {position}")
    if not isinstance(losses, list) or not all(type(loss) is float for loss in losses):
        raise ValueError("losses are not numbers")
    return Progress(Position(**position), losses)


def restore(
    store: checkpoint.Store,
    identity: dict[str, Any],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    comm: Communicator,
    say: Callable[[object], None],
) -> Progress | None:
    """Brings model and optimizer to the newest whole checkpoint of rank 0's folder; None where there is none.

    Rank 0's copy goes to all ranks, so it does not matter whether hosts share a folder or each has its own, nor what
    an earlier job left in the others. UserError, the same on all ranks, when it was written by another job.
    """
    found = store.newest(lambda text: say(f"warning: {text}")) if comm.is_leader else None
    folder = comm.from_leader(lambda: str(found[0]) if found else "")
    packed = comm.bytes_from_leader(found[1] if found else None)
    if packed is None:
        return None
    saved = checkpoint.unpack(packed, folder)
    try:
        checkpoint.compatible(dict(saved["identity"]), identity, folder)
        progress = read_progress(saved["position"], saved["losses"])
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    except UserError:
        raise
    except Exception as error:  # torch has no one class for parts that do not fit each other
        raise checkpoint.unusable(folder, f"{type(error).__name__}: {error}"[:200]) from None
    at = progress.position
    say(f"resumed: {folder}, epoch {at.epoch + 1}, {at.samples} samples of it done, step {at.step}")
    return progress
