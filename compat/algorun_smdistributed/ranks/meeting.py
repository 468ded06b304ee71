"""Ranks of one group that meet: each says which call it is in, and hands the others data.

A meeting has Gloo groups of its own, so that it meets nothing of a pipeline's or of the user's messages.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import torch
import torch.distributed as dist

from algorun_train.common.errors import UserError
from algorun_train.ranks import join
from algorun_train.ranks.object_channel import gathered_rows
from algorun_train.ranks.packing import Packing, cannot_be_sent

FIRST = 1024  # bytes of the first round; longer data takes a second one
NAME = 200  # bytes of a call's name
SHAPE = struct.Struct("<HQ")  # length of the name, length of the data
CPU = torch.device("cpu")
T = TypeVar("T")


class RankMeeting:
    """One group of ranks. Make it on all ranks of the job, in the same order: it makes process groups."""

    def __init__(
        self,
        rank: int,
        ranks: Sequence[int],
        patience: datetime.timedelta | None = None,
        fix: str = "allowed: the same on all of them; fix: call it on every rank of the group",
    ) -> None:
        """`rank` is this one's number in the job, `ranks` are the group's. `patience` is how long a patient call waits,
        `fix` what the error for different calls tells the caller's users."""
        self.rank, self.ranks, self._fix = rank, tuple(ranks), fix
        self._groups: dict[bool, dist.ProcessGroup] = {}
        if len(ranks) > 1:
            self._groups[False] = dist.new_group(list(ranks), backend="gloo", timeout=join.COLLECTIVE_TIMEOUT)
            if patience:  # made in advance: later, only all ranks of the job together could make it
                self._groups[True] = dist.new_group(list(ranks), backend="gloo", timeout=patience)

    def together(self, what: str, data: bytes = b"", patient: bool = False) -> list[bytes]:
        """Every rank's `data`, by its place in `ranks`. All of them call it with the same `what`.

        Each waits for the others for join.COLLECTIVE_TIMEOUT, a `patient` one for the meeting's patience.
        Raises UserError on all of them if they are in different calls; RuntimeError, Gloo's, if a rank has ended or does
        not come in time.
        """
        if len(self.ranks) < 2:
            return [data]
        name = what.encode()[:NAME]
        room = FIRST - SHAPE.size - len(name)
        rows = self._gathered(SHAPE.pack(len(name), len(data)) + name + data[:room], FIRST, patient)
        shapes = [SHAPE.unpack_from(row) for row in rows]
        names = [
            row[SHAPE.size :][:length].decode(errors="replace") for row, (length, _) in zip(rows, shapes, strict=True)
        ]
        if len(set(names)) > 1:
            calls = ", ".join(f"rank {rank} calls {call}" for rank, call in zip(self.ranks, names, strict=True))
            raise UserError(f"the ranks of one group call different things: {calls}; {self._fix}")
        sizes = [size for _, size in shapes]
        if max(sizes) > room:
            rows = self._gathered(data, max(sizes), patient)
            return [row[:size] for row, size in zip(rows, sizes, strict=True)]
        return [row[SHAPE.size + len(name) :][:size] for row, size in zip(rows, sizes, strict=True)]

    def gathered(self, value: T, what: str, device: torch.device = CPU, patient: bool = False) -> list[T]:
        """Every rank's `value`, any that pickle takes, by its place in `ranks`; otherwise as `together`.

        Tensors that were on a GPU arrive on `device`. This rank's own value is a copy, too.
        Raises UserError for a value that cannot be pickled.
        """
        packing = Packing(device, cannot_be_sent(what))
        return [packing.unpack(row) for row in self.together(what, packing.pack(value).data, patient)]

    def on_all(self, work: Callable[[], T], what: str, patient: bool = False) -> list[T]:
        """What every rank gets from its `work`, by its place in `ranks`; otherwise as `together`.

        If it fails on one of them, all raise: UserError everywhere, or on the one that failed its own other error.
        """
        result, error, broken = None, None, None
        try:
            result = work()
        except UserError as failed:
            error = str(failed)
        except Exception as failed:  # not ours, but the others must not wait for this rank
            error, broken = f"rank {self.rank} failed: {type(failed).__name__}: {failed}", failed
        rows = self.gathered((result, error), what, patient=patient)
        if broken:
            raise broken
        if first := next((text for _, text in rows if text), None):
            raise UserError(first)
        return [cast(T, value) for value, _ in rows]  # without an error each has its own

    def _gathered(self, data: bytes, length: int, patient: bool) -> list[bytes]:
        """Every rank's `data`, each padded to `length` bytes."""
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        return [row.numpy().tobytes() for row in gathered_rows(mine, length, self._groups[patient])]


def own_meeting(
    rank: int, groups: Sequence[Sequence[int]], fix: str, patience: datetime.timedelta | None = None
) -> RankMeeting:
    """The meeting of the group that `rank` is in. `groups` are disjoint. On all ranks of the job."""
    made = [RankMeeting(rank, ranks, patience, fix) for ranks in groups]
    return next(meeting for meeting in made if rank in meeting.ranks)
