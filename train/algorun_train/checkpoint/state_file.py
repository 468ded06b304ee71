"""The file format of a checkpoint's state: `torch.save` of a dictionary, read back without executing anything in it."""

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO

import torch

from algorun_train.common.errors import UserError
from algorun_train.loop.progress import LoopProgress, Position

FORMAT = 1
# A state holds tensors, numbers, texts, lists and dictionaries. Any: torch.load gives no types, and whoever reads a value
# checks it.
State = dict[str, Any]
Values = Mapping[str, object]  # JSON values by name
LATER = frozenset({"weights"})  # of an identity: checkpoints of before 0.2.0 do not have these
IDENTITY, OPTIONS, POSITION, LOSSES = "identity", "options", "position", "losses"  # keys of a state


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What a checkpoint says about the job that wrote it.

    `identity`: what the job that resumes it must have in common with it. `options`: what else changes training; another
    value is a warning. A checkpoint of before 0.2.0 has none.
    """

    identity: Values
    options: Values = field(default_factory=dict)

    def state(self, progress: LoopProgress) -> State:
        """A state without tensors."""
        return {
            "format": FORMAT,
            IDENTITY: dict(self.identity),
            OPTIONS: dict(self.options),
            POSITION: asdict(progress.position),
            LOSSES: progress.losses,
        }


def read_record(state: State) -> JobRecord:
    """The record in a state. Raises KeyError, TypeError or ValueError for values that no job writes."""
    record = JobRecord(dict(state[IDENTITY]), dict(state.get(OPTIONS, {})))
    json.dumps([record.identity, record.options])  # a file may hold anything: two tensors cannot be compared
    return record


def unpack(data: bytes, where: str) -> State:
    """As `read_state`, of the bytes of a file."""
    return read_state(io.BytesIO(data), where)


def read_state(file: BinaryIO, where: str) -> State:
    """Reads a state; its tensors are on the CPU. Nothing in the file is executed (weights_only).

    Raises UserError, which names the file as `where`, if the file is not a state of this FORMAT.
    """
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or state["format"] != FORMAT:
            found = state["format"] if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"format {found}, this version reads {FORMAT}")
    except Exception as error:  # torch has no one class for a file that it cannot read
        first = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise unusable(where, first) from None
    return state


def read_progress(position: dict[str, int], losses: list[float]) -> LoopProgress:
    """The progress in a state. Raises TypeError or ValueError for values that no job writes: a file may hold anything."""
    if not all(type(value) is int and value >= 0 for value in position.values()):
        raise ValueError(f"position {position}")
    if not isinstance(losses, list) or not all(type(loss) is float for loss in losses):
        raise ValueError("losses are not numbers")
    return LoopProgress(Position(**position), losses)


def resumed_line(folder: str, progress: LoopProgress) -> str:
    """The line of the log that says where a job resumes."""
    at = progress.position
    return f"resumed: {folder}, epoch {at.epoch + 1}, {at.samples} samples of it done, step {at.step}"


def unusable(where: str, why: str) -> UserError:
    """The error for a checkpoint that was found and cannot be read."""
    return UserError(f"checkpoint {where} cannot be used: {why}; fix: --resume never, or another --checkpoint-dir")


def does_not_fit(where: str, error: Exception) -> UserError:
    """The error for a checkpoint whose values do not fit this job's model or optimizer."""
    return unusable(where, f"{type(error).__name__}: {error}"[:200])


def compatible(saved: Values, own: Values, where: str) -> None:
    """Raises UserError if the checkpoint belongs to another model, other data or another order of samples."""
    unknown = LATER - saved.keys()
    differing = [k for k in {**own, **saved} if saved.get(k) != own.get(k) and k not in unknown]
    if differing:
        values = "; ".join(f"{k} is {saved.get(k)!r} there, {own.get(k)!r} here" for k in differing[:4])
        raise UserError(
            f"checkpoint {where} does not fit this job: {values}; allowed: the same model, data, optimizer and seed; "
            "fix: give the same options, or --resume never, or another --checkpoint-dir"
        )
