"""The wish to stop (SIGTERM), and how all ranks agree on the step at which they do.

Imported before torch: a stop that arrives while torch loads must not be lost.
"""

import signal
import time
from dataclasses import dataclass
from typing import Protocol

# A stop is answered within this time plus one step; a tenth of the grace that orchestrators give at the least.
AGREE_EVERY_S = 0.25
MAX_STEPS_BETWEEN = 256


class StopFlag:
    """Set by SIGTERM. The handler only sets it: whatever the rank is doing goes on to the end of its step."""

    def __init__(self) -> None:
        self.wanted = False

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self._set)

    def _set(self, signum: int, frame: object) -> None:
        self.wanted = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all ranks do after this step."""

    stop: bool = False
    save: bool = False


NOTHING = Verdict()


class Exchange(Protocol):
    def exchange(self, values: list[float]) -> list[list[float]]: ...


class Agreement:
    """Every rank calls `poll` after every step; every few steps they exchange their wishes in one tiny collective.

    How many steps lie between is itself agreed on, from the measured time of a step, so that the cost per step stays
    negligible with steps of a millisecond and the answer stays quick with steps of a minute.
    """

    def __init__(self, mesh: Exchange, flag: StopFlag) -> None:
        self._mesh, self._flag = mesh, flag
        self._every, self._since, self._at = 1, 0, time.monotonic()

    def poll(self, save_due: bool = False) -> Verdict:
        """The common verdict; `save_due` counts on rank 0 only, which holds the clock."""
        self._since += 1
        if self._since < self._every:
            return NOTHING
        now = time.monotonic()
        step_s = max((now - self._at) / self._since, 1e-6)
        every = min(max(int(AGREE_EVERY_S / step_s), 1), MAX_STEPS_BETWEEN)
        rows = self._mesh.exchange([float(self._flag.wanted), float(save_due), float(every)])
        self._every, self._since, self._at = int(min(row[2] for row in rows)), 0, now
        return Verdict(stop=any(row[0] for row in rows), save=bool(rows[0][1]))
