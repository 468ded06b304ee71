"""What a host has told the hub about its ranks in the attempt that runs, so that it says nothing twice. Pure.

The hub answers a failure with its verdict or with a restart. Where it does not, the report may not have arrived: a network can
lose large packets and let small ones through, such as heartbeats. The hub then hears nothing more of this host, and counts it as
lost; this host waits as long for that verdict before it says that it has lost the hub.
"""

from __future__ import annotations

import math

from algorun.common.errors import ExitCode
from algorun.common.fast_dataclasses import replace
from algorun.control.failures.failure import Failure, with_others
from algorun.control.host_loss import silence_s
from algorun.control.hub.failure_reports import MISSED_S
from algorun.control.wire.messages import ANSWER_S
from algorun.job.limits import Limits

NO_HUB_S = 10.0  # for a hub that is not reached yet to hear of a failure of this host


class AttemptReport:
    """The reports of attempt number `attempt`. At `deadline` this host ends by itself, with `unanswered`."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.attempt = 0
        self.deadline = math.inf
        self.failures: dict[int, Failure] = {}  # by local rank, -1 for anything else on this host
        self.note: str | None = None  # for the closing line; not None once all ranks of this host have ended
        self.hang_told_at = -math.inf  # that a rank makes no steps
        self.silent_told = False  # that no rank shows progress, and no rank has gone on since
        self.unmatched_told = False  # once in a job, not once in an attempt

    def restart(self, attempt: int) -> None:
        """Another attempt follows."""
        self.attempt, self.deadline = attempt, math.inf
        self.failures.clear()
        self.note, self.hang_told_at, self.silent_told = None, -math.inf, False

    def news(self, local_rank: int, failure: Failure) -> Failure | None:
        """The failure with the attempt's number, None where the hub knows it already with its exit code."""
        known = self.failures.get(local_rank)
        return None if known is not None and known.code == failure.code else replace(failure, attempt=self.attempt)

    def add(self, now: float, local_rank: int, failure: Failure, *, reached: bool) -> None:
        """This host has told the hub of the failure. `deadline` becomes the time at which the answer is overdue."""
        self.failures.setdefault(local_rank, failure)
        if self.deadline == math.inf:
            wait_s = self._limits.blame_s + MISSED_S + ANSWER_S + self._limits.leave_s
            self.deadline = now + wait_s + (silence_s(self._limits) if reached else 0.0)
            self.deadline = max(self.deadline, now + NO_HUB_S)

    def explained(self, failure: Failure) -> None:
        """What is known of a failure that was added."""
        for local_rank, known in self.failures.items():
            if (known.rank, known.code, known.kind) == (failure.rank, failure.code, failure.kind):
                self.failures[local_rank] = failure

    def unanswered(self, leader: str, *, reached: bool) -> Failure:
        """The failure that this host ends with. Where the hub was never `reached`, its own first one: nobody else matters yet."""
        first = next(iter(self.failures.values()))
        if not reached:
            return first
        text = "hub lost: it does not answer the failure that this host has reported"
        lost = Failure("lost", leader, ExitCode.LOST, text, attempt=self.attempt)
        return with_others(lost, [(0.0, lost), *((1.0, each) for each in self.failures.values())])
