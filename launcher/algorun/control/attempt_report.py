"""What a host has told the hub about its ranks in the attempt that runs, so that nothing is told twice. Pure."""

from __future__ import annotations

import math

from algorun.common.fast_dataclasses import replace
from algorun.job.limits import Limits

from .failure import Failure
from .failure_reports import MISSED_S
from .messages import ANSWER_S

NO_HUB_S = 10.0  # for a hub that is not reached yet to hear of a failure of this host


class AttemptReport:
    """The reports of attempt number `attempt`. At `deadline` this host ends by itself: the hub has not answered."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.attempt = 0
        self.deadline = math.inf
        self.failures: dict[int, Failure] = {}  # by local rank, -1 for anything else on this host
        self.note: str | None = None  # for the closing line; not None once all ranks of this host have ended
        self.hang_told = False
        self.silence_told = False  # once in a job, not once in an attempt

    def restart(self, attempt: int) -> None:
        """Another attempt follows."""
        self.attempt, self.deadline = attempt, math.inf
        self.failures.clear()
        self.note, self.hang_told = None, False

    def news(self, local_rank: int, failure: Failure) -> Failure | None:
        """The failure with the attempt's number, None where the hub knows it already with its exit code."""
        known = self.failures.get(local_rank)
        return None if known is not None and known.code == failure.code else replace(failure, attempt=self.attempt)

    def add(self, now: float, local_rank: int, failure: Failure, *, reached: bool) -> None:
        """The hub is told of this failure. `deadline` is set to when its answer is overdue."""
        self.failures.setdefault(local_rank, failure)
        if self.deadline == math.inf:
            wait_s = self._limits.blame_s + MISSED_S + ANSWER_S + self._limits.leave_s
            self.deadline = now + (wait_s if reached else max(wait_s, NO_HUB_S))

    @property
    def first(self) -> Failure:
        """The first failure of this host; there is one."""
        return next(iter(self.failures.values()))
