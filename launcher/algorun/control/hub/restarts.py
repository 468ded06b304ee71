"""Decides whether another attempt follows a failed one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from algorun.common.errors import ExitCode
from algorun.common.fast_dataclasses import replace
from algorun.control.failures.failure import Failure

if TYPE_CHECKING:
    from algorun.control.failures.same_failure import SameFailure

# Nothing that another attempt on the same hosts could mend. A lost host comes back only with a new training job.
FINAL = frozenset({"lost", "gate", "configuration", "mismatch", "setup", "preflight", "defect"})
MOST_BARREN = 3  # attempts in a row that leave no newer checkpoint


class Restarts:
    """Counts attempts. `budget` is how many may follow the first one."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.attempt = 0
        self.cause: Failure | None = None  # what ended the attempt before
        self._newest: Mapping[str, float] = {}
        self._barren = 0
        self._failed_gpus: set[tuple[str, int | None]] = set()  # hosts and ranks
        self._last: SameFailure | None = None  # of the attempt before, None where it was a failure of the machine
        self._same_start = False  # this attempt has begun at the checkpoint that the one before it had begun at

    def counted(self, failure: Failure) -> Failure:
        """The failure, which also says how many attempts there may be."""
        return replace(failure, attempts=self.budget + 1)

    def final(self, failure: Failure, hosts: frozenset[str], hindrance: str = "") -> Failure | None:
        """The failure that ends the job, None where another attempt may help. `hosts` have reported it. `hindrance` says why none
        can follow."""
        if not self.budget or failure.kind in FINAL:
            return failure
        if failure.of_gpu and self._fails_again(failure):
            where = failure.host if failure.rank is None else f"rank {failure.rank} on {failure.host}"
            return replace(failure, note=f"no restart: GPU memory of {where} has failed twice")
        if not hindrance and (same := self._same_again(failure, hosts)):
            return _exhausted(same, failure)
        if self.attempt < self.budget:
            return replace(failure, note=f"no restart: {hindrance}") if hindrance else None
        return _exhausted(f"no restart is left ({self.budget} of {self.budget} used)", failure)

    def _fails_again(self, failure: Failure) -> bool:
        """True from the second failure of a rank's GPU memory on. After the first one the driver of an A100 or newer has
        taken the bad page out of use, and a new process can use the GPU."""
        place = failure.host, failure.rank
        known = place in self._failed_gpus
        self._failed_gpus.add(place)
        return known

    def _same_again(self, failure: Failure, hosts: frozenset[str]) -> str:
        """A sentence where the attempt before has failed in the same way, else ""."""
        from algorun.control.failures import same_failure  # no start needs it

        before, self._last = self._last, same_failure.identity(failure, hosts)
        again = same_failure.is_same(before, self._last, same_start=self._same_start)
        return self._last.text(self.attempt) if again and self._last is not None else ""

    def restart(self, cause: Failure) -> None:
        """Another attempt follows."""
        self.attempt, self.cause = self.attempt + 1, cause

    def begins(self, newest: Mapping[str, float]) -> Failure | None:
        """All hosts are ready for an attempt; `newest` is the age stamp of each one's newest checkpoint.

        Returns the failure that ends the job where the attempts before it have saved no newer checkpoint. Stamps are
        compared with the same host's own only.
        """
        if self.attempt:
            newer = any(stamp > self._newest.get(host, 0.0) for host, stamp in newest.items())
            self._barren = 0 if newer else self._barren + 1
            self._same_start = not newer
        self._newest = dict(newest)
        if self.cause is None or self._barren < MOST_BARREN:
            return None
        return _exhausted(f"no newer checkpoint in {MOST_BARREN} attempts", self.cause)


def _exhausted(why: str, last: Failure) -> Failure:
    message = f"{why}; the last failure: {last.headline()}"
    return replace(last, kind="budget", code=ExitCode.BUDGET, message=message, rank=None, step=0, how_left="", place="")
