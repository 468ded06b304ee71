"""A host before its ranks run: how long it waits for the hub, and for its own preparation. Pure."""

from __future__ import annotations

import math

from algorun.job.limits import Limits

STOP_S = 2.0  # to reach the hub and tell it of a stop, as the other hosts would wait for this one


class Joining:
    """`prepare_deadline` is the end of the preparation under way, `alone_at` when this host stops without a hub."""

    def __init__(self, now: float, limits: Limits) -> None:
        self._limits = limits
        self._deadline = now + limits.gate_s + limits.leave_s  # the hub's own gate limit speaks first
        self.prepare_deadline = math.inf
        self.alone_at = math.inf
        self.stop_reason = ""  # of a stop that came before the hub was reached

    def deadline(self, *, reached: bool) -> float:
        """When this host gives up. A hub that was reached waits for hosts that prepare, and speaks first."""
        return self._deadline + (2 * self._limits.prepare_s if reached else 0.0)

    def again(self, now: float) -> None:
        """This host waits for another attempt."""
        self._deadline = now + self._limits.restart_s + self._limits.leave_s

    def prepares(self, now: float) -> None:
        """This host fetches its code and installs what it requires."""
        self.prepare_deadline = now + self._limits.prepare_s

    def prepared(self) -> None:
        """The preparation has ended, well or not."""
        self.prepare_deadline = math.inf

    def stop(self, now: float, why: str) -> bool:
        """This host was told to stop before it reached the hub. False where it was told so before."""
        if self.alone_at < math.inf:
            return False
        self.alone_at, self.stop_reason = now + STOP_S, why
        return True
