"""How all ranks agree on the step at which they stop or save."""

from __future__ import annotations

import sys
import time
from typing import NamedTuple, Protocol

from .stop_flag import StopFlag

# A stop is answered within this time plus one step; a tenth of the grace that orchestrators give at the least.
AGREE_EVERY_S = 0.25
MAX_STEPS_BETWEEN = 256


class Verdict(NamedTuple):
    """What all ranks do after this step."""

    stop: bool = False
    save: bool = False


NOTHING = Verdict()


class Exchange(Protocol):
    """Whatever can show every rank's numbers to every rank: row r holds rank r's."""

    def exchange(self, values: list[float]) -> list[list[float]]: ...


def show_life() -> None:
    """Tells the launcher's step counter, where there is one, that this rank goes on: an evaluation makes no steps."""
    steps = sys.modules.get("algorun_rank_steps")
    if steps is not None:
        steps.alive()


class Agreement:
    """Every rank calls `poll` after every step; every few steps they exchange their wishes in one tiny collective.

    How many steps lie between is itself agreed on, from the measured time of a step, so that the cost per step stays
    negligible with steps of a millisecond and the answer stays quick with steps of a minute.
    """

    def __init__(self, peers: Exchange, flag: StopFlag) -> None:
        self._peers, self._flag = peers, flag
        self._every, self._since, self._at = 1, 0, time.monotonic()

    def poll(self, save_due: bool = False) -> Verdict:
        """The common verdict; `save_due` counts on rank 0 only, which holds the clock."""
        show_life()
        self._since += 1
        if self._since < self._every:
            return NOTHING
        now = time.monotonic()
        step_s = max((now - self._at) / self._since, 1e-6)
        every = min(max(int(AGREE_EVERY_S / step_s), 1), MAX_STEPS_BETWEEN)
        rows = self._peers.exchange([float(self._flag.wanted), float(save_due), float(every)])
        self._every, self._since, self._at = int(min(row[2] for row in rows)), 0, now
        return Verdict(stop=any(row[0] for row in rows), save=bool(rows[0][1]))
