"""Where ranks of a group meet: they say what they call, and hand each other bytes. Nobody waits for who cannot come.

Everything goes through Gloo groups of its own, so that it meets nothing of a pipeline's or the script's. A rank that
waits for longer than a second says on a board where it is and for whom; two that wait for each other in different calls
would do so for ever, and both end with an error instead. Other waits end by the groups' timeout, with Gloo's error.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import secrets
import struct
import time
from collections import Counter
from collections.abc import Sequence
from typing import TypedDict

import torch
import torch.distributed as dist

from algorun_train.errors import UserError
from algorun_train.parallel.cut import on_one_rank
from algorun_train.parallel.grid import Grid
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import COLLECTIVE_TIMEOUT

FIRST = 1024  # bytes of the first round; more than that travels in a second one
NAME = 200  # of them at most for what is called
SHAPE = struct.Struct("<HQ")  # length of the name, length of the bytes
PATIENCE_S = 1.0  # before a rank looks where the others are, and between two looks
STORE_S = 10.0

_groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
_patient: dict[tuple[int, ...], dist.ProcessGroup] = {}
"""of the pipelines: they wait for a search that one of their ranks makes for all"""
_board: _Board | None = None


class _Place(TypedDict):
    """Where one rank waits, as JSON on the board."""

    what: str
    """the call that it waits in"""
    ranks: list[int]
    """of the group that it waits for"""
    number: int
    """how often it has met this group, this time included"""
    entered: dict[str, int]
    """how often it has met each group"""


class _Board:
    """What ranks that wait are waiting in, by rank, in a store of the job."""

    def __init__(self, rank: int, store: dist.Store) -> None:
        self.rank, self._store = rank, store
        self.entered: Counter[str] = Counter()
        """how often this rank has met each group"""

    def write(self, ranks: Sequence[int], what: str) -> None:
        key = _key(ranks)
        place = _Place(what=what, ranks=list(ranks), number=self.entered[key], entered=self.entered)
        with contextlib.suppress(RuntimeError):  # the store's host has gone, so this wait ends by itself
            self._store.set(str(self.rank), json.dumps(place))

    def clear(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._store.set(str(self.rank), "")

    def blocked(self, ranks: Sequence[int]) -> tuple[int, str] | None:
        """A rank of those that this one waits for, which waits for this one elsewhere, and where; None: none is known."""
        key = _key(ranks)
        for other in ranks:
            place = self._read(other) if other != self.rank else None
            if (
                place
                and place["entered"].get(key, 0) < self.entered[key]  # it has not come here
                and self.rank in place["ranks"]
                and self.entered[_key(place["ranks"])] < place["number"]  # this one has not been there
            ):
                return other, place["what"]
        return None

    def _read(self, rank: int) -> _Place | None:
        with contextlib.suppress(RuntimeError):
            if self._store.check([str(rank)]):
                text = self._store.get(str(rank))
                place: _Place | None = json.loads(text) if text else None
                return place
        return None


def _key(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks))


def connect(comm: Communicator, grid: Grid) -> None:
    """Makes the groups: all ranks, each pipeline, each set of replicas. On all ranks, once."""
    global _board
    if not comm.world.distributed:
        return
    for ranks in (range(comm.size), *grid.pipelines, *grid.replicas):
        if len(ranks) > 1 and tuple(ranks) not in _groups:
            _groups[tuple(ranks)] = dist.new_group(list(ranks), backend="gloo", timeout=COLLECTIVE_TIMEOUT)
    # Made in advance: a group of a pipeline alone can only be made by all ranks of the job together.
    for ranks in grid.pipelines if grid.pp > 1 else ():
        _patient[tuple(ranks)] = dist.new_group(list(ranks), backend="gloo", timeout=on_one_rank.LIMIT)
    # A name of its own: torchrun's store outlives an attempt, and would tell where a dead rank was waiting.
    name = comm.from_leader(lambda: secrets.token_hex(8))
    with contextlib.suppress(RuntimeError):  # the script has joined its ranks in another way: there is no board then
        store = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=datetime.timedelta(seconds=STORE_S),
        )
        _board = _Board(comm.rank, dist.PrefixStore(f"smp-{name}", store))


def everybody() -> dist.ProcessGroup | None:
    """The group of all ranks; None in a process that is alone."""
    return next(iter(_groups.values()), None)


def together(ranks: Sequence[int], what: str, data: bytes = b"", patient: bool = False) -> list[bytes]:
    """Every rank's `data`, by its place in `ranks`, a group that this one is in. All of them call it with the same `what`.

    `patient`, for the ranks of a pipeline: one of them searches first, so the others wait as long as for a cut.

    UserError on all of them for different calls, and on two that wait for each other. RuntimeError, Gloo's, when one
    of them has ended or does not come in time.
    """
    if len(ranks) < 2:
        return [data]
    group = (_patient if patient else _groups)[tuple(ranks)]
    if _board:
        _board.entered[_key(ranks)] += 1
    name = what.encode()[:NAME]
    room = FIRST - SHAPE.size - len(name)
    rows = _gather(SHAPE.pack(len(name), len(data)) + name + data[:room], FIRST, ranks, group, what)
    names, found = [], []
    for row in rows:
        length, size = SHAPE.unpack_from(row)
        names.append(row[SHAPE.size : SHAPE.size + length].decode(errors="replace"))
        found.append((row[SHAPE.size + length :], size))
    if len(set(names)) > 1:
        calls = ", ".join(f"rank {rank} calls {name}" for rank, name in zip(ranks, names, strict=True))
        raise UserError(
            f"the ranks of one group call different things: {calls}; allowed: the same on all of them, @smp.step "
            "functions on all ranks of a pipeline, also for evaluation; fix: call it on every rank, not on rank 0 alone"
        )
    if any(size > len(start) for start, size in found):
        whole = _gather(data, max(size for _, size in found), ranks, group, what)
        found = [(row, size) for row, (_, size) in zip(whole, found, strict=True)]
    return [row[:size] for row, size in found]


def _gather(data: bytes, size: int, ranks: Sequence[int], group: dist.ProcessGroup, what: str) -> list[bytes]:
    mine = torch.zeros(size, dtype=torch.uint8)
    if data:
        mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    rows = [torch.empty_like(mine) for _ in ranks]
    work = dist.all_gather(rows, mine, group=group, async_op=True)
    assert work is not None
    _wait(work, ranks, what)
    return [row.numpy().tobytes() for row in rows]


def _wait(work: dist.Work, ranks: Sequence[int], what: str) -> None:
    begun, pause, look, told = time.monotonic(), 5e-5, PATIENCE_S, False
    try:
        while not work.is_completed():
            if _board and time.monotonic() - begun > look:
                _board.write(ranks, what)
                look, told = look + PATIENCE_S, True
                if found := _board.blocked(ranks):
                    other, place = found
                    raise UserError(
                        f"{what}: rank {_board.rank} waits here for rank {other}, which waits for it in {place}; allowed: "
                        "the same call on all ranks of a group, @smp.step functions on all ranks of a pipeline, also for "
                        "evaluation; fix: call it on every rank, not on rank 0 alone"
                    )
            time.sleep(pause)
            pause = min(2 * pause, 0.005)
        work.wait()
    finally:
        if told and _board:
            _board.clear()
