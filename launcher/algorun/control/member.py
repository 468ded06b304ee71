"""One host's part of the job: joins, runs its ranks, reports, obeys the verdict. A pure state machine.

JOIN --go--> RUN --end | hub lost--> LEAVE --ranks gone--> LEFT
  ^           v
  '------- RESTART (until nothing of the attempt is left)

Methods take the time (seconds, this host's monotonic clock) and return actions for the supervisor; `deadline` says
when `tick` is due. A stop is a phase of RUN: ranks have been told, and the grace is running.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from algorun.errors import ExitCode
from algorun.job.settings import Limits

from .failure import Failure, Raised, RankLeft
from .first_failure import MISSED_S
from .heartbeat import Pulse, silence_s
from .inquiry import ANSWER_S
from .messages import Done, Fail, Go, Hang, Heartbeat, Message, SaveFailed, Stop, Verdict
from .rank_failures import RankFailures

STOP_S = 2.0  # to reach the hub and tell it of a stop: an untold hub waits longer for this host
TELL_S = 10.0  # for a hub that is not there yet to hear of a failure of this host


class State(Enum):
    """`IN_JOB` are those before the verdict."""

    JOIN = "join"
    RUN = "run"
    RESTART = "restart"
    LEAVE = "leave"
    LEFT = "left"


IN_JOB = frozenset({State.JOIN, State.RUN, State.RESTART})


@dataclass(frozen=True, slots=True)
class ToHub:
    message: Message


@dataclass(frozen=True, slots=True)
class Start:
    go: Go


@dataclass(frozen=True, slots=True)
class Signal:
    """To all ranks of this host: a request (SIGTERM) or the end (SIGKILL)."""

    number: int


@dataclass(frozen=True, slots=True)
class Conclude:
    """The verdict is known: write it down, end the ranks."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Warn:
    text: str


Action = ToHub | Start | Signal | Conclude | Warn
Explain = Callable[[Failure], Failure]  # adds what this machine knows of a failure


def _same(failure: Failure) -> Failure:
    return failure


class Member:
    """State of this host. `leader` is the hub's host; `bundled` says that the program is ours, with our exit codes."""

    def __init__(
        self, now: float, host: str, leader: str, limits: Limits, *, bundled: bool = False, explain: Explain = _same
    ) -> None:
        self._explain = explain
        self.state = State.JOIN
        self.verdict: Verdict | None = None
        self._host, self._leader, self._limits = host, leader, limits
        self.ranks = RankFailures(host, bundled=bundled)
        self._pulse = Pulse(now, limits.heartbeat_s)
        self._join_deadline = now + limits.gate_s + limits.leave_s  # the hub's own gate limit speaks first
        self._heard: float | None = None
        self._attempt = 0
        self._failed: dict[int, Failure] = {}
        self._report_deadline: float | None = None
        self._stopping = False
        self._note: str | None = None  # given once all ranks are gone
        self._kill_at: float | None = None
        self._prepare_deadline: float | None = None
        self._alone_at: float | None = None  # a stop came before the hub was reached: when this host leaves by itself
        self._alone_why = ""
        self._hang_said = False

    @property
    def stopping(self) -> bool:
        return self._stopping

    @property
    def deadline(self) -> float:
        times = [self._pulse.next_at]
        if self.state is State.JOIN:
            times.append(self._joining_until)
        if self._heard is not None and self.state in IN_JOB:
            times.append(self._silent_at)
        own = (self._kill_at, self._report_deadline, self._prepare_deadline, self._alone_at)
        times += [each for each in own if each is not None]
        return min(times)

    @property
    def _silent_at(self) -> float:
        """When the hub counts as lost, should nothing come until then."""
        return max((self._heard or 0.0) + silence_s(self._limits), self._pulse.patient_until)

    @property
    def _joining_until(self) -> float:
        """A hub that was reached waits for hosts that prepare, and speaks first."""
        return self._join_deadline + (0.0 if self._heard is None else 2 * self._limits.prepare_s)

    def joined(self, now: float) -> list[Action]:
        """Connected to the hub."""
        self._heard = now
        return []

    def heard(self, now: float) -> list[Action]:
        """Anything from the hub."""
        self._heard = now
        return []

    def go(self, now: float, go: Go, ranks: dict[int, int]) -> list[Action]:
        """All hosts have met; `ranks` maps this host's local ranks to global ones."""
        if self.state is not State.JOIN:
            return []
        self.state, self._attempt = State.RUN, go.attempt
        self.ranks.begin(ranks)
        return [Start(go)]

    def rank_raised(self, now: float, local_rank: int, raised: Raised, *, is_rank: bool) -> list[Action]:
        """An exception reached the top in a rank (`is_rank`) or in a process below it, which the rank may survive."""
        failure = self.ranks.raised(now, local_rank, raised, is_rank=is_rank)
        if failure is None or self.state is not State.RUN or self._stopping:
            return []
        return self._report(now, local_rank, failure)

    def rank_exited(self, now: float, local_rank: int, returncode: int, tail: str = "", step: int = 0) -> list[Action]:
        """A rank has ended; -n for signal n. `tail` is the end of its stderr, `step` how far it was."""
        rank, failure = self.ranks.running(local_rank), self.ranks.exited(now, local_rank, returncode, tail)
        if rank is None or self.state is not State.RUN:
            return []
        if failure is None:  # the hub knows whether others still needed it; one that has raised has told why it goes
            known = self._stopping or local_rank in self._failed
            return [] if known else [ToHub(RankLeft(self._host, rank, step, self._attempt))]
        if not self._stopping:
            return self._report(now, local_rank, failure)
        actions: list[Action] = [Warn(f"rank {failure.rank} left with {failure.code} while stopping")]
        if self.ranks.raised_itself(local_rank) and failure.spoils_a_stop(bundled=self.ranks.bundled):
            failure = self._explain(replace(failure, attempt=self._attempt))
            actions.append(ToHub(SaveFailed(failure)))
        return actions

    def all_ranks_gone(self, now: float, note: str = "") -> list[Action]:
        """No rank of this host is left. `note` goes into the closing line of all hosts."""
        self._note = note
        if self.state is State.RUN and (self._stopping or not self._failed):
            self._kill_at = None
            return [ToHub(Done(note))]
        return []

    def preparing(self, now: float) -> list[Action]:
        """This host fetches its code and installs what it requires."""
        self._prepare_deadline = now + self._limits.prepare_s
        return []

    def prepared(self, now: float) -> list[Action]:
        """That is done, well or not."""
        self._prepare_deadline = None
        return []

    def restart(self, now: float, attempt: int) -> list[Action]:
        """The attempt has failed and another one follows: this one's ranks end first."""
        if self.state is not State.RUN or self._stopping:  # the hub hears of the stop, and ends the job
            return []
        self.state, self._attempt = State.RESTART, attempt
        self._report_deadline, self._note, self._hang_said = None, None, False
        self._failed.clear()
        self.ranks.begin({})
        self._kill_at = now + self._limits.kill_s
        return [Signal(signal.SIGTERM)]

    def cleared(self, now: float) -> list[Action]:
        """Nothing of the failed attempt is left: this host waits for `go` once more."""
        if self.state is State.RESTART:
            self.state, self._kill_at = State.JOIN, None
            self._join_deadline = now + self._limits.restart_s + self._limits.leave_s
        return []

    def broken(self, now: float, failure: Failure) -> list[Action]:
        """Something of this host other than a rank has failed (its preparation, its engine, its plan)."""
        if self.state is State.JOIN or (self.state is State.RUN and not self._stopping):
            return self._report(now, -1, failure)
        return []

    def hangs(self, now: float, idle_s: float) -> list[Action]:
        """A rank of this host has made no step for so long. Said once for each attempt: the hub decides."""
        if self.state is not State.RUN or self._stopping or self._hang_said:
            return []
        self._hang_said = True
        return [ToHub(Hang(idle_s))]

    def stop_asked(self, now: float, why: str) -> list[Action]:
        """This host was told to stop, by a signal."""
        if self.state in (State.LEAVE, State.LEFT):
            return []
        actions: list[Action] = [ToHub(Stop(why))]
        if self.state is State.JOIN:
            if self._heard is None:
                if self._alone_at is not None:  # asked again
                    return self._stopped_alone(now)
                self._alone_at, self._alone_why = now + STOP_S, why
            return actions
        return [*actions, *self.stop(now, why)]

    def _stopped_alone(self, now: float) -> list[Action]:
        return self._conclude(now, Verdict("stopped", ExitCode.OK, None, self._alone_why))

    def stop(self, now: float, why: str) -> list[Action]:
        """All hosts stop: ranks are told, and have the grace to save."""
        if self._stopping or self.state is not State.RUN:
            return []
        self._stopping = True
        self._report_deadline = None
        if self._note is not None:  # they had ended by a failure that the stop has overtaken
            return [ToHub(Done(self._note))]
        self._kill_at = now + self._limits.grace_s
        return [Signal(signal.SIGTERM)]

    def hurry(self, now: float) -> list[Action]:
        """Somebody at a terminal asked a second time: no more grace."""
        if not self._stopping or self.state is not State.RUN or self._kill_at is None:
            return []
        self._kill_at = None
        return [Warn("interrupted again: ranks that still run are killed"), Signal(signal.SIGKILL)]

    def end(self, now: float, verdict: Verdict) -> list[Action]:
        """The hub's verdict."""
        return self._conclude(now, verdict)

    def hub_lost(self, now: float, reason: str) -> list[Action]:
        """No hub, no job: this host ends itself."""
        if self.state not in IN_JOB:
            return []
        return self._conclude(now, _failed(Failure("lost", self._leader, ExitCode.LOST, reason)))

    def refused(self, now: float, why: str) -> list[Action]:
        """The hub does not take this host."""
        failure = Failure("mismatch", self._host, ExitCode.CONFIGURATION, f"refused by {self._leader}: {why}")
        return self._conclude(now, _failed(failure))

    def left(self) -> None:
        """The supervisor has ended everything."""
        self.state = State.LEFT

    def tick(self, now: float) -> list[Action]:
        """Deadlines."""
        actions: list[Action] = []
        if self._pulse.due(now) and self._heard is not None:
            actions.append(ToHub(Heartbeat()))
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            if self._stopping and self.state is State.RUN:
                actions.append(Warn(f"ranks that outlasted the grace of {self._limits.grace_s:g} s are killed"))
            actions.append(Signal(signal.SIGKILL))
        silent = self._heard is not None and now >= self._silent_at
        if silent and self.state in IN_JOB:
            reason = f"hub lost: no sign of life from {self._leader} for {self._limits.heartbeat_timeout_s:g} s"
            actions += self.hub_lost(now, reason)
        if self.state is State.JOIN and now >= self._joining_until:
            text = f"hub not reached after {self._limits.gate_s:g} s: {self._leader}"
            failure = self._explain(Failure("gate", self._leader, ExitCode.GATE, text))
            actions += self._conclude(now, _failed(failure))
        if self._alone_at is not None and now >= self._alone_at:
            self._alone_at = None
            if self.state is State.JOIN and self._heard is None:
                actions += self._stopped_alone(now)
        if self._prepare_deadline is not None and now >= self._prepare_deadline:
            self._prepare_deadline = None
            text = f"not ready after {self._limits.prepare_s:g} s (ALGORUN_PREPARE_S)"
            actions += [Signal(signal.SIGKILL), *self.broken(now, Failure("setup", self._host, ExitCode.GATE, text))]
        unanswered = self._report_deadline is not None and now >= self._report_deadline
        if unanswered and self.state in (State.JOIN, State.RUN):
            actions += self._conclude(now, _failed(next(iter(self._failed.values()))))
        return actions

    def _report(self, now: float, local_rank: int, failure: Failure) -> list[Action]:
        failure = replace(failure, attempt=self._attempt)
        known = self._failed.get(local_rank)
        if known is not None and known.code == failure.code:
            return []
        failure = self._explain(failure)
        self._failed.setdefault(local_rank, failure)
        if self._report_deadline is None:  # the hub answers after its questions, or not at all
            wait_s = self._limits.blame_s + MISSED_S + ANSWER_S + self._limits.leave_s
            self._report_deadline = now + (wait_s if self._heard is not None else max(wait_s, TELL_S))
        return [ToHub(Fail(failure))]

    def _conclude(self, now: float, verdict: Verdict) -> list[Action]:
        if self.state in (State.LEAVE, State.LEFT):
            return []
        self.state, self.verdict = State.LEAVE, verdict
        self._report_deadline = None
        if verdict.kind == "ok":  # no rank is left; an engine's own end is orderly and may take a moment
            self._kill_at = now + self._limits.leave_s
            return [Conclude(verdict)]
        self._kill_at = now + self._limits.kill_s
        return [Conclude(verdict), Signal(signal.SIGTERM)]


def _failed(failure: Failure) -> Verdict:
    return Verdict("failed", failure.code, failure)
