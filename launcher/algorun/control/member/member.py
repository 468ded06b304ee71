"""One host's part of the job: joins, runs its ranks, reports, obeys the verdict. A pure state machine.

JOIN --go--> RUN --end | hub lost--> LEAVE --ranks have ended--> BYE --nobody waits for this host--> LEFT
  ^           v
  '------- RESTART (until nothing of the attempt is left)

Methods take the time (seconds, this host's monotonic clock) and return actions for the supervisor; `deadline` says
when `tick` is due. A stop is a phase of RUN: ranks have been told, and the grace is running.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from enum import Enum

from algorun.common.errors import ExitCode
from algorun.common.fast_dataclasses import replace
from algorun.control.failures.failure import Failure, Raised, RankLeft
from algorun.control.hang.host_look import HostLook
from algorun.control.host_loss import HubLoss
from algorun.control.wire import messages
from algorun.control.wire.messages import (
    Done,
    Fail,
    Go,
    Hang,
    Heartbeat,
    Looked,
    RanksSilent,
    SaveFailed,
    Stop,
    Unmatched,
    Verdict,
)
from algorun.job.limits import Limits

from .actions import Action, Conclude, EndProcesses, Signal, Start, ToHub, Warn
from .attempt_report import AttemptReport
from .joining import Joining
from .rank_failures import RankFailures


class MemberState(Enum):
    """`IN_JOB` are those before the verdict."""

    JOIN = "join"
    RUN = "run"
    RESTART = "restart"
    LEAVE = "leave"
    BYE = "bye"
    LEFT = "left"


IN_JOB = frozenset({MemberState.JOIN, MemberState.RUN, MemberState.RESTART})


class Grace:
    """A stop on one host: this host tells its ranks once, gives them time to save, and kills them after that. `kill_at` is when ranks that
    are left are killed, for whatever reason."""

    def __init__(self) -> None:
        self.stopping = False
        self.kill_at = math.inf
        self._interrupts = 0

    def interrupted(self) -> bool:
        """Ctrl-C at a terminal; True from the second one on, which takes the grace away."""
        self._interrupts += 1
        return self._interrupts > 1

    def kill_now(self) -> bool:
        """Ends the time that is left. False where none was."""
        left, self.kill_at = self.kill_at < math.inf, math.inf
        return left


class Member:
    """State of this host. `leader` is the hub's host."""

    def __init__(self, now: float, host: str, leader: str, limits: Limits) -> None:
        self.state, self.ranks = MemberState.JOIN, RankFailures(host)
        self.verdict: Verdict | None = None
        self._host, self._leader, self._limits = host, leader, limits
        self._hub = HubLoss(now, leader, limits)
        self._joining = Joining(now, limits)
        self._report = AttemptReport(limits)
        self._grace = Grace()

    @property
    def stopping(self) -> bool:
        return self._grace.stopping

    @property
    def awaits_ranks(self) -> bool:
        """True until the hub has been told that all ranks of this attempt have ended."""
        return self.state is MemberState.RUN and self._report.note is None

    @property
    def failed_ranks(self) -> list[int]:
        """The ranks of this host whose failures it has reported in the last attempt."""
        return sorted(each.rank for each in self._report.failures.values() if each.rank is not None)

    @property
    def deadline(self) -> float:
        joining = self._joining
        times = [self._hub.next_beat_at, self._grace.kill_at, joining.prepare_deadline]
        if self.state is MemberState.JOIN:
            times += [joining.deadline(reached=self._hub.reached), joining.alone_at]
        if self.state in IN_JOB:
            times += [self._hub.silent_at, self._report.deadline]
        return min(times)

    # -- the hub ---------------------------------------------------------------------------------------------------

    def heard(self, now: float) -> None:
        """Anything from the hub; the hub's own host has reached it from the start."""
        self._hub.heard(now)

    def go(self, now: float, go: Go, ranks: dict[int, int], *, bundled: bool = False, code: str = "") -> list[Action]:
        """All hosts have met; `ranks` maps this host's local ranks to global ones.

        `bundled`: the program is one of ours, with our exit codes. `code`: the folder of the user's code.
        """
        if self.state is not MemberState.JOIN:
            return []
        self.state, self._report.attempt = MemberState.RUN, go.attempt
        self.ranks.begin(ranks, bundled=bundled, code=code)
        return [Start(go)]

    def restart(self, now: float, attempt: int) -> list[Action]:
        """The attempt has failed and another one follows: this one's ranks end first."""
        if self.state is not MemberState.RUN or self.stopping:  # the hub hears of the stop, and ends the job
            return []
        self.state = MemberState.RESTART
        self._report.restart(attempt)
        self.ranks.begin({})
        self._grace.kill_at = now + self._limits.kill_s
        return [Signal(signal.SIGTERM)]

    def end(self, now: float, verdict: Verdict) -> list[Action]:
        """The hub's verdict."""
        return self._conclude(now, verdict)

    def hub_lost(self, now: float, reason: str) -> list[Action]:
        """Without a hub there is no job: this host ends."""
        return self._conclude(now, _failed(Failure("lost", self._leader, ExitCode.LOST, reason)))

    def refused(self, now: float, why: str) -> list[Action]:
        """The hub does not take this host."""
        failure = Failure("mismatch", self._host, ExitCode.CONFIGURATION, f"refused by {self._leader}: {why}")
        return self._conclude(now, _failed(failure))

    # -- this host's ranks -----------------------------------------------------------------------------------------

    def rank_raised(
        self, now: float, local_rank: int, raised: Raised, *, is_rank: bool, tails: Sequence[str] = ("",)
    ) -> list[Action]:
        """An exception reached the top in a rank (`is_rank`) or in a process below it, which the rank may survive.

        `tails` are the ends of what the rank has printed: of both streams, and of stderr alone.
        """
        failure = self.ranks.raised(now, local_rank, raised, is_rank=is_rank, tails=tails)
        if failure is None or self.state is not MemberState.RUN or self.stopping:
            return []
        return self._tell(now, local_rank, failure)

    def rank_exited(
        self,
        now: float,
        local_rank: int,
        returncode: int,
        tail: str = "",
        step: int = 0,
        printed: str = "",
        age_s: float = 0.0,
    ) -> list[Action]:
        """A rank has ended `age_s` ago; -n for signal n. `tail` is the end of its stderr, `printed` that of both streams, `step`
        how far it was."""
        rank = self.ranks.running(local_rank)
        failure = self.ranks.exited(now, local_rank, returncode, tail, printed, age_s)
        if rank is None or self.state is not MemberState.RUN:
            return []
        if (
            failure is None
        ):  # only the hub knows whether other ranks still need it; a rank that has raised has said why it leaves
            known = self.stopping or local_rank in self._report.failures
            return [] if known else [ToHub(RankLeft(self._host, rank, step, self._report.attempt))]
        if not self.stopping:
            return self._tell(now, local_rank, failure)
        actions: list[Action] = [Warn(f"rank {failure.rank} left with {failure.code} while stopping")]
        if self.ranks.raised_itself(local_rank) and failure.makes_stop_fail(bundled=self.ranks.bundled):
            actions.append(ToHub(SaveFailed(replace(failure, attempt=self._report.attempt))))
        return actions

    def explained(self, failure: Failure) -> None:
        """A failure as the supervisor tells it to the hub, with what this machine knows: this host may have to end with it."""
        self._report.explained(failure)

    def all_ranks_gone(self, now: float, note: str = "", cut_off: int = 0) -> list[Action]:
        """No rank of this host is left. `note` goes into the closing line of all hosts; `cut_off` ranks were ended by the stop.
        Told to the hub once."""
        if not self.awaits_ranks:
            return []
        self._report.note = note
        if self._report.failures and not self.stopping:  # the hub judges
            return []
        self._grace.kill_at = math.inf
        return [ToHub(Done(note, cut_off))]

    def hangs(self, now: float, idle_s: float) -> list[Action]:
        """A rank of this host has made no step for `idle_s`. The hub decides; the rank for which the others wait may go on, so this
        host tells it again once that time has doubled."""
        if self.state is not MemberState.RUN or self.stopping or now - self._report.hang_told_at < idle_s / 2:
            return []
        self._report.hang_told_at = now
        return [ToHub(Hang(idle_s))]

    def silent(self, idle_s: float) -> list[Action]:
        """No rank of this host has shown progress for `idle_s`, 0.0: one goes on. Only a change is told; the hub decides."""
        report = self._report
        if self.state is not MemberState.RUN or self.stopping or report.silent_told == bool(idle_s):
            return []
        report.silent_told = bool(idle_s)
        return [ToHub(RanksSilent(report.attempt, idle_s))]

    def looked(self, look: HostLook) -> list[Action]:
        """What this host has seen of its ranks, as the hub has asked."""
        return [ToHub(Looked(self._report.attempt, look))] if self.state is MemberState.RUN else []

    def unmatched(self) -> list[Action]:
        """ALGORUN_PROGRESS has matched no line of this host's ranks so far. Told once in a job."""
        if self.state is not MemberState.RUN or self.stopping or self._report.unmatched_told:
            return []
        self._report.unmatched_told = True
        return [ToHub(Unmatched())]

    # -- this host -------------------------------------------------------------------------------------------------

    def preparing(self, now: float) -> None:
        """This host fetches its code and installs what it requires."""
        self._joining.prepares(now)

    def prepared(self) -> None:
        """The preparation has ended, well or not."""
        self._joining.prepared()

    def cleared(self, now: float) -> None:
        """Nothing of the failed attempt is left: this host waits for `go` once more."""
        if self.state is MemberState.RESTART:
            self.state, self._grace.kill_at = MemberState.JOIN, math.inf
            self._joining.again(now)

    def broken(self, now: float, failure: Failure) -> list[Action]:
        """Something of this host other than a rank has failed (its preparation, its engine, its plan)."""
        if self.state is MemberState.JOIN or (self.state is MemberState.RUN and not self.stopping):
            return self._tell(now, -1, failure)
        return []

    def stop_asked(self, now: float, why: str, *, interrupt: bool = False) -> list[Action]:
        """This host was told to stop, by a signal. With `interrupt` somebody at a terminal asked, maybe once more."""
        hurry = interrupt and self._grace.interrupted()
        if self.state not in IN_JOB:
            return []
        actions: list[Action] = [ToHub(Stop(why))]
        if self.state is not MemberState.JOIN:
            actions += self.stop(now, why)
        elif not self._hub.reached and not self._joining.stop(now, why):
            return self._stopped_alone(now)
        return [*actions, *self.hurry(now)] if hurry else actions

    def stop(self, now: float, why: str) -> list[Action]:
        """All hosts stop: each tells its ranks, which have the grace to save."""
        if self.stopping or self.state is not MemberState.RUN:
            return []
        self._grace.stopping = True
        self._report.deadline = math.inf
        if self._report.note is not None:  # the ranks had ended by a failure, and the stop came before its judgement
            return [ToHub(Done(self._report.note))]
        self._grace.kill_at = now + self._limits.grace_s
        return [Signal(signal.SIGTERM)]

    def hurry(self, now: float) -> list[Action]:
        """Somebody at a terminal asked a second time: no more grace."""
        if not self.stopping or self.state is not MemberState.RUN or not self._grace.kill_now():
            return []
        return [Warn("interrupted again: ranks that still run are killed"), Signal(signal.SIGKILL)]

    def leave(self, *, ranks: bool, engine: bool, forced: bool = False) -> list[Action]:
        """After the verdict: this host says bye once its `ranks` have ended, and after success its `engine` too.

        Each says whether it still runs. `forced`: what still runs has been killed.
        """
        orderly = self.verdict is not None and self.verdict.kind == "ok"
        if self.state is not MemberState.LEAVE or ((ranks or (orderly and engine)) and not forced):
            return []
        self.state = MemberState.BYE
        return [EndProcesses(), ToHub(messages.bye(self.verdict))]

    def left(self) -> None:
        """The supervisor has ended everything, and no host waits for this one."""
        self.state = MemberState.LEFT

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Action]:
        """Deadlines."""
        actions: list[Action] = []
        if self._hub.beat_due(now):
            actions.append(ToHub(Heartbeat()))
        if now >= self._grace.kill_at:
            self._grace.kill_now()
            if self.stopping and self.state is MemberState.RUN:
                actions.append(Warn(f"ranks that outlasted the grace of {self._limits.grace_s:g} s are killed"))
            actions.append(Signal(signal.SIGKILL))
        if self.state in IN_JOB and (silence := self._hub.silence(now)):
            actions += self.hub_lost(now, silence)
        if self.state is MemberState.JOIN:
            actions += self._tick_joining(now)
        if now >= self._joining.prepare_deadline:
            self._joining.prepared()
            text = f"not ready after {self._limits.prepare_s:g} s (ALGORUN_PREPARE_S)"
            actions += [Signal(signal.SIGKILL), *self.broken(now, Failure("setup", self._host, ExitCode.GATE, text))]
        if now >= self._report.deadline and self.state in (MemberState.JOIN, MemberState.RUN):
            actions += self._conclude(now, _failed(self._report.unanswered(self._leader, reached=self._hub.reached)))
        return actions

    def _tick_joining(self, now: float) -> list[Action]:
        actions: list[Action] = []
        if now >= self._joining.deadline(reached=self._hub.reached):
            text = f"hub not reached after {self._limits.gate_s:g} s: {self._leader}"
            failure = Failure("gate", self._leader, ExitCode.GATE, text)
            actions += self._conclude(now, _failed(failure), own=True)
        if now >= self._joining.alone_at:
            self._joining.alone_at = math.inf
            if self.state is MemberState.JOIN and not self._hub.reached:
                actions += self._stopped_alone(now)
        return actions

    def _stopped_alone(self, now: float) -> list[Action]:
        return self._conclude(now, Verdict("stopped", ExitCode.OK, None, self._joining.stop_reason))

    def _tell(self, now: float, local_rank: int, failure: Failure) -> list[Action]:
        news = self._report.news(local_rank, failure)
        if news is None:
            return []
        self._report.add(now, local_rank, news, reached=self._hub.reached)
        return [ToHub(Fail(news))]

    def _conclude(self, now: float, verdict: Verdict, *, own: bool = False) -> list[Action]:
        if self.state not in IN_JOB:
            return []
        self.state, self.verdict = MemberState.LEAVE, verdict
        self._report.deadline = math.inf
        if verdict.kind == "ok":  # no rank is left; an engine may take a moment to end
            self._grace.kill_at = now + self._limits.leave_s
            return [Conclude(verdict)]
        self._grace.kill_at = now + self._limits.kill_s
        return [Conclude(verdict, own=own), Signal(signal.SIGTERM)]


def _failed(failure: Failure) -> Verdict:
    return Verdict("failed", failure.code, failure)
