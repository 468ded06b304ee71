"""The attempts of the job: what hosts report of the one that runs, and how it ends. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from algorun.common.errors import ExitCode
from algorun.common.fast_dataclasses import replace
from algorun.control.failures.failure import Failure, RankLeft, listed
from algorun.control.wire.messages import AskStacks, Done, LookClosely, Restart, Verdict
from algorun.job.limits import Limits

from .failure_reports import FailureReports
from .restarts import Restarts
from .root_cause import RootCause

if TYPE_CHECKING:
    from .silent_hosts import SilentHosts


class Attempts:
    """`budget` is how many attempts may follow the first one. `root_cause` is that of the attempt that runs."""

    def __init__(self, hosts: Sequence[str], limits: Limits, budget: int) -> None:
        self._hosts, self._limits = tuple(hosts), limits
        self._restarts = Restarts(budget)
        self.root_cause = RootCause(hosts[0], limits.blame_s)
        self.stop_reason = ""  # why the job stops, "" while it does not
        self._failed_saves = FailureReports(limits.blame_s)  # ranks that could not save in a stop
        self._cut_off: dict[str, int] = {}  # ranks that a stop has ended, by host
        self._done: set[str] = set()  # hosts whose ranks have all ended well, or were stopped
        self._note = ""  # the leader's, for the closing line
        self._silent: SilentHosts | None = None

    @property
    def number(self) -> int:
        """0 for the first one."""
        return self._restarts.attempt

    @property
    def cause(self) -> Failure:
        """What ended the attempt before; there is one."""
        assert self._restarts.cause is not None
        return self._restarts.cause

    def begins(self, newest: dict[str, float]) -> Failure | None:
        """All hosts are ready; `newest` is the stamp of each one's newest checkpoint. Returns what forbids the start."""
        return self._restarts.begins(newest)

    def failed(self, now: float, failure: Failure) -> None:
        """A host reports a failure. In a stop, ranks may see their peers vanish before they hear of the stop."""
        self.root_cause.failed(now, failure, judge=not self.stop_reason)

    def host_lost(self, now: float, host: str, reason: str, age_s: float) -> None:
        """A host is lost: that is a failure, also in a stop. It was seen `age_s` ago."""
        self.root_cause.failed(now, Failure("lost", host, ExitCode.LOST, reason, age_s=age_s), judge=False)
        self.root_cause.weigh(now)

    def save_failed(self, now: float, failure: Failure) -> None:
        """A rank could not save in a stop. The others still save; then the job ends as failed."""
        self._failed_saves.add(now, failure)

    def memory_kill(self, host: str, attempt: int, text: str) -> None:
        """The kernel has killed processes of a host for memory. The job may go on without them."""
        if attempt == self.number:
            self.root_cause.memory_kill(host, text)

    def rank_left(self, now: float, left: RankLeft) -> None:
        """A rank has left with 0."""
        if not self.stop_reason and left.attempt == self.number:
            self.root_cause.rank_left(now, left)

    @property
    def silent(self) -> SilentHosts:
        """The hosts on which no rank shows progress; made by the first one that says so."""
        if self._silent is None:
            from .silent_hosts import SilentHosts  # no start needs it

            self._silent = SilentHosts(self._limits.hang_s)
        return self._silent

    @property
    def may_look(self) -> bool:
        """True while nothing else is judged."""
        return not self.stop_reason and not self.root_cause.judging

    def look_due(self, now: float, departed: Collection[str]) -> LookClosely | None:
        """The question to all hosts what their ranks do, once all hosts whose ranks run are silent."""
        silent = self._watch(departed)
        return silent.due(now, self._with_ranks(departed)) if silent is not None else None

    def deadline(self, departed: Collection[str]) -> float:
        """When `due` or `look_due` has to be asked; never, while nothing has failed and not all are silent."""
        silent = self._watch(departed) if self._silent is not None else None
        if silent is None:
            return self.root_cause.deadline
        return min(self.root_cause.deadline, silent.deadline(self._with_ranks(departed)))

    def _watch(self, departed: Collection[str]) -> SilentHosts | None:
        """None where not all hosts can be silent. A hub of many hosts asks at every message, and most of them may be silent."""
        if self._silent is None or self._silent.count < len(self._hosts) - len(self._done) - len(departed):
            return None
        return self._silent if self.may_look else None

    def _with_ranks(self, departed: Collection[str]) -> set[str]:
        return set(self._hosts) - self._done - set(departed)

    def stop(self, now: float, why: str) -> None:
        """The job stops. A failure that was reported before is still its end, but no restart follows."""
        self.stop_reason = why
        self.root_cause.stopped(now)

    def done(self, host: str, message: Done, ranks: int) -> Verdict | None:
        """All ranks of a host have ended well, or were stopped. The verdict, once this is true of all hosts."""
        self._cut_off[host] = message.cut_off
        self._done.add(host)
        if host == self._hosts[0]:
            self._note = message.note
        if self.root_cause.open or self._done != set(self._hosts):
            return None
        if self.stop_reason and self._failed_saves:
            failure = self._restarts.counted(self._failed_saves.cause(ranks))
            return Verdict("failed", failure.code, failure)
        if self.stop_reason:
            return Verdict("stopped", ExitCode.OK, None, f"{self.stop_reason}{self._unsaved(ranks)}")
        restarts = f" restarts={self.number}" if self.number else ""
        return Verdict("ok", ExitCode.OK, None, f"{self._note}{restarts}".strip())

    def _unsaved(self, ranks: int) -> str:
        """What a stop has cost, for the closing line."""
        cut_off = sum(self._cut_off.values())
        return f"; {cut_off} of {ranks} ranks were ended by it before they could save" if cut_off else ""

    def due(self, now: float, ranks: int) -> Failure | AskStacks | None:
        """The root cause of a failure once it can be named, or the question that has to be asked before."""
        return self.root_cause.due(now, ranks, self.number, stopping=bool(self.stop_reason))

    def judge(self, failure: Failure, departed: Collection[str]) -> Restart | Failure:
        """What follows from the root cause: another attempt where one may help, else the failure that ends the job.

        `departed` are the hosts that are lost.
        """
        hosts = self.root_cause.hosts_of(failure)
        failure = self.root_cause.complete(self._restarts.counted(failure))
        lost = [host for host in self._hosts if host in departed]
        hindrance = f"{listed(lost)} {'was' if len(lost) == 1 else 'were'} lost" if lost else ""
        if self.stop_reason:
            hindrance = f"the job was told to stop ({self.stop_reason})"
        final = self._restarts.final(failure, hosts, hindrance)
        if final is not None:
            return final
        self._restarts.restart(failure)
        self.root_cause.clear()
        self._done.clear()
        self._silent = None
        self._note = ""
        return Restart(self.number, failure)

    def not_ready_again(self, limit_s: float, late: Sequence[str]) -> Failure:
        """These hosts did not get ready for the attempt in time: the cause of the restart ends the job."""
        return replace(self.cause, note=f"no restart: not ready again after {limit_s:g} s: {listed(late)}")
