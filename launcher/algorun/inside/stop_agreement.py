"""All ranks agree on the step after which they stop or save."""

from __future__ import annotations

import sys
import time
from typing import NamedTuple, Protocol

from .stop_flag import StopFlag

# Ranks learn of a stop within this time plus one step. Orchestrators grant at least ten times as much.
AGREE_EVERY_S = 0.25
MAX_STEPS_BETWEEN = 64  # where steps of a millisecond become steps of a second, a stop is still heard in a minute


class StopVerdict(NamedTuple):
    """What all ranks do after this step, the same on each."""

    stop: bool = False
    save: bool = False


NOTHING = StopVerdict()


class Peers(Protocol):
    """All ranks of a job, this one included."""

    rank: int

    def largest(self, values: list[float]) -> list[float]:
        """The largest of all ranks' values, element by element. Call it on all ranks, with the same number of values."""
        ...


def show_life() -> None:
    """A sign of life for the launcher's step counter, if this process has one: an evaluation makes no steps."""
    steps = sys.modules.get("algorun_rank_steps")
    if steps is not None:
        steps.alive()


class Agreement:
    """Every rank calls `poll` after every step. Every few steps the ranks find the largest of three numbers.

    The ranks also agree on the number of steps until the next exchange, from the measured time of a step: with steps of
    a millisecond the exchange must cost little, with steps of a minute the answer must come at once.
    """

    def __init__(self, peers: Peers, flag: StopFlag) -> None:
        self._peers, self._flag = peers, flag
        self._every, self._since = 1, 0
        self._at: float | None = None  # of the last exchange; before it no step was measured

    def poll(self, save_due: bool = False) -> StopVerdict:
        """The common verdict. `save_due` counts on rank 0 only: its clock decides when a checkpoint is due."""
        show_life()
        self._since += 1
        if self._since < self._every:
            return NOTHING
        now = time.monotonic()
        every = self._wanted(now)
        save = save_due and self._peers.rank == 0
        stopping, saving, fewest = self._peers.largest([float(self._flag.wanted), float(save), -float(every)])
        self._every, self._since, self._at = int(-fewest), 0, now
        return StopVerdict(stop=bool(stopping), save=bool(saving))

    def _wanted(self, now: float) -> int:
        """Steps until the next exchange, by this rank's clock: at most twice as many as the last time, so that a few quick steps
        among slow ones mean little."""
        if self._at is None:
            return 1
        step_s = max((now - self._at) / self._since, 1e-6)
        return min(max(int(AGREE_EVERY_S / step_s), 1), 2 * self._every, MAX_STEPS_BETWEEN)
