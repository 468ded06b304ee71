"""The hub: meets all hosts, hears the first failure, gives one verdict to all. A pure state machine.

GATE --all hosts said hello, and then ready--> RUN --all done | stop | a failure--> END --all said bye--> finished
                                                |  ^
                              a failure, budget v  | all ready again
                                               RESTART

Every method takes the current time (seconds of the leader's monotonic clock) and returns the messages to send;
`deadline` says when `tick` wants to be called. Every state has a deadline, so every state is left.

What the hub decides is in modules of their own: who may start (gate.py), who is lost (host_loss.py), which failure is
the root cause (root_cause.py), how an attempt ends and whether another one follows (attempts.py, restarts.py).
hub_messages.py says which method each message of a host calls.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from algorun.common.errors import ExitCode
from algorun.control.failures.failure import Failure, RankLeft
from algorun.control.failures.non_finite import NonFiniteValue
from algorun.control.hang.hang import Stack
from algorun.control.hang.host_look import HostLook
from algorun.control.host_loss import HostLoss
from algorun.control.wire.messages import (
    AskStacks,
    Done,
    End,
    Heartbeat,
    Hello,
    LookClosely,
    Message,
    Notice,
    Ready,
    Refuse,
    Stop,
    Verdict,
)
from algorun.job.limits import Limits

from .attempts import Attempts
from .gate import Gate

if TYPE_CHECKING:
    from .reports import HubReports

LATE_S = 10.0  # how long a verdict at the gate waits for hosts that have not come yet

Sends = list[tuple[str, Message]]


class HubState(Enum):
    GATE = "gate"
    RUN = "run"
    RESTART = "restart"
    END = "end"


class Hub:
    """State of the job as the leader sees it. `hosts` is the file's order; the leader is the first.

    `restarts` is how many attempts may follow the first one.
    """

    def __init__(self, now: float, hosts: Sequence[str], limits: Limits, restarts: int = 0) -> None:
        self.state = HubState.GATE
        self.verdict: Verdict | None = None
        self._hosts, self._limits = tuple(hosts), limits
        self.gate = Gate(now, hosts, limits)
        self._loss = HostLoss(now, limits)
        self.attempts = Attempts(hosts, limits, restarts)
        self._reports: HubReports | None = None
        self._leave_deadline = 0.0
        self._ended_at_gate = False

    @property
    def leader(self) -> str:
        return self._hosts[0]

    @property
    def reports(self) -> HubReports:
        """What the hosts report while ranks run; made by the first report, for no start needs it."""
        if self._reports is None:
            from .reports import HubReports

            self._reports = HubReports()
        return self._reports

    @property
    def departed(self) -> set[str]:
        """Hosts that have said bye, or are lost."""
        return self._loss.departed

    @property
    def finished(self) -> bool:
        """True once every other host has left, or had its time to: after a verdict at the gate also the late ones."""
        awaited = self._hosts if self._ended_at_gate else self.gate.hellos
        return self.state is HubState.END and self.departed >= set(awaited) - {self.leader}

    @property
    def deadline(self) -> float:
        """When `tick` is due; never, once finished."""
        if self.finished:
            return math.inf
        due = self._loss.deadline
        if self.state is not HubState.END and not self._loss.awaits:  # as in `tick`
            due = min(due, self.attempts.deadline(self.departed))
        if self.state in (HubState.GATE, HubState.RESTART):
            due = min(due, self.gate.deadline)
        if self.state is HubState.RUN and self._reports is not None:
            due = min(due, self._reports.non_finite.deadline)
        if self.state is HubState.END:
            due = min(due, self._leave_deadline)
        return due

    # -- who comes -------------------------------------------------------------------------------------------------

    @property
    def missing(self) -> list[str]:
        """Hosts that have not come, as long as they are waited for."""
        return self.gate.missing if self.state is HubState.GATE else []

    @property
    def rivals(self) -> bool:
        """True while another leader waits for a verdict."""
        return self.state is HubState.GATE and bool(self.gate.rivals.hellos)

    def hello(self, now: float, hello: Hello) -> Sends:
        """A host has come. A stranger or a second host of the same name is refused, the job goes on."""
        host = hello.host
        refusal = self.gate.refusal(host)
        if refusal:
            return [(host, Refuse(refusal))]
        if self.state is HubState.GATE and self.gate.rivals.takes(hello):
            return [(host, Heartbeat())]  # no verdict yet
        self.gate.hello(now, hello)
        self._loss.heard(now, host)
        if self.verdict is not None:
            return [(host, End(self.verdict))]
        if hello.error:
            return self._fail(now, Failure("configuration", host, ExitCode.CONFIGURATION, hello.error))
        return self._compare(now, host)

    def reconnected(self, now: float, host: str) -> Sends:
        """A host has connected anew. One that has counted as lost hears the verdict, and is waited for."""
        late = self._loss.is_back(now, host)
        return [(host, End(self.verdict))] if late and self.verdict is not None else []

    def rivals_asked(self, now: float, answered: Collection[str]) -> Sends:
        """All missing hosts were asked whether they lead too; `answered` do, and have no verdict."""
        newest = self.gate.rivals.judge(answered) if self.state is HubState.GATE else ""
        if not newest:
            return []
        self.gate.hellos |= self.gate.rivals.hellos
        return self._compare(now, newest)

    def ended_by_rival(self, now: float, host: str, verdict: Verdict) -> Sends:
        """Another leader has ended the job. Late hosts whose files name this one hear it here."""
        sends = self._end(now, verdict) if self.state is HubState.GATE and verdict.kind == "failed" else []
        if self.state is HubState.END:
            self.departed.add(host)
        return sends

    def waits(self, now: float) -> str:
        """A line about the hosts that the others wait for at the gate, where one is due."""
        return self.gate.waits(now) if self.state is HubState.GATE else ""

    # -- what hosts say --------------------------------------------------------------------------------------------

    def heard(self, now: float, host: str) -> None:
        """Anything from a host that has joined."""
        self._loss.heard(now, host)

    def ready(self, now: float, host: str, ready: Ready) -> Sends:
        """A host has its code and could start, or could start again. When all could, they do."""
        if self.state not in (HubState.GATE, HubState.RESTART) or host not in self.gate.hellos:
            return []
        self.gate.is_ready(now, host, ready)
        return self._compare(now, host) or self._open(now)

    def fail(self, now: float, failure: Failure) -> Sends:
        """A host reports a failure. The first one opens a window; what comes within it is weighed too."""
        if self.state is HubState.END or failure.host not in self.gate.hellos:
            return []
        if failure.attempt != self.attempts.number:  # sent before this host heard of the restart
            return []
        if self.state is not HubState.RUN:  # it cannot get ready; nothing runs yet that could be its cause
            return self._fail(now, failure)
        self.attempts.failed(now, failure)
        return []

    def rank_left(self, now: float, left: RankLeft) -> Sends:
        """A rank has left with 0, while its host goes on."""
        if self.state is HubState.RUN:
            self.attempts.rank_left(now, left)
        return []

    def hang(self, now: float, idle_s: float) -> Sends:
        """A rank somewhere makes no steps: all hosts are asked for the stacks of their ranks."""
        if self.state is not HubState.RUN or self.attempts.stop_reason:
            return []
        question = self.attempts.root_cause.hang(now, idle_s)
        return self._ask(question) if question else []

    def silent(self, now: float, host: str, idle_s: float) -> Sends:
        """No rank of a host has shown progress for `idle_s`, or one goes on (0.0). Once all hosts are silent, all look."""
        if self.state is not HubState.RUN:
            return []
        self.attempts.silent.heard(now, host, idle_s)
        return self._look(now)

    def looked(self, now: float, host: str, look: HostLook) -> Sends:
        """What a host has seen of its ranks. If all ranks of the job stand, all hosts are asked for their stacks."""
        if self.state is not HubState.RUN or not self.attempts.may_look:
            return []
        found = self.attempts.silent.looked(now, host, look, set(self._hosts) - self.departed)
        if isinstance(found, str):
            return [(self.leader, Notice(found))] if found else []
        question = self.attempts.root_cause.stands_still(now, found, self.attempts.silent.worker)
        return self._ask(question) if question else []

    def stack(self, stack: Stack) -> Sends:
        """What one rank is doing."""
        self.attempts.root_cause.stack(stack, self.gate.slots)
        return []

    def stacks_sent(self, now: float, host: str) -> Sends:
        """A host has sent the stacks of all its ranks."""
        answered = self.attempts.root_cause.stacks_sent(host)
        if not answered or not answered >= set(self._hosts) - self.departed:
            return []
        found = self.attempts.root_cause.after_stacks(now, self.gate.slots, self.attempts.number)
        return self._judge(now, found) if found is not None else []

    def non_finite(self, now: float, value: NonFiniteValue) -> None:
        """A rank has found a loss, a gradient or a weight that is not finite. Other ranks may have found an earlier one."""
        if self.state is HubState.RUN and value.attempt == self.attempts.number:
            self.reports.non_finite.heard(now, value)

    def stop(self, now: float, why: str) -> Sends:
        """A host was told to stop: all stop."""
        if self.state is HubState.END or self.attempts.stop_reason:
            return []
        self.attempts.stop(now, why)
        if self.state is not HubState.RUN:  # no rank runs that could save anything
            return self._end(now, Verdict("stopped", ExitCode.OK, None, why))
        return [(each, Stop(why)) for each in self.gate.hellos]

    def done(self, now: float, host: str, message: Done) -> Sends:
        """All ranks of a host have ended well, or were stopped."""
        verdict = self.attempts.done(host, message, self.gate.slots) if self.state is HubState.RUN else None
        return self._end(now, verdict) if verdict else []

    def bye(self, now: float, host: str, informed: Collection[str] = (), why: str = "") -> Sends:
        """A host has ended its processes and leaves. Before a verdict it has given up, and nobody else would say so.

        `informed` are the hosts that know another leader's verdict: they will not come.
        """
        if self.state is not HubState.END:
            return self.lost(now, host, f"host lost: {f'it gave up: {why}' if why else 'it left before the end'}")
        self.departed.update((host, *informed))
        return []

    def reset(self, now: float, host: str, why: str) -> Sends:
        """The connection of a host was reset: it may come back at once (`reconnected`), or is lost."""
        if host in self.gate.rivals.hellos or host not in self.gate.hellos:
            return self.lost(now, host, f"host lost: {why}")
        if host not in self.departed:
            self._loss.reset(now, host, why)
        return []

    def lost(self, now: float, host: str, reason: str, age_s: float = 0.0) -> Sends:
        """A host is lost: its connection was closed, or reset for good, it is silent, or it has left too early.

        That was seen `age_s` ago.
        """
        self.gate.rivals.hellos.pop(host, None)
        if host in self.gate.hellos and host not in self.departed:
            self.departed.add(host)
            if self.state is not HubState.END:
                self.attempts.host_lost(now, host, reason, age_s)
        return []

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> Sends:
        """Deadlines."""
        sends: Sends = []
        if now >= self._loss.deadline:
            sends += self._beat(now) if self._loss.beat_due(now) else []
            others = self.gate.hellos.keys() - self.departed - {self.leader}
            for host, reason in self._loss.silent(now, others).items():
                sends += self.lost(now, host, reason)
            for host, (reason, age_s) in self._loss.not_back(now).items():
                sends += self.lost(now, host, reason, age_s)
        if self.state in (HubState.GATE, HubState.RESTART) and now >= self.gate.deadline:
            sends += self._overdue(now)
        if (
            self.state is not HubState.END and not self._loss.awaits
        ):  # whether a host is lost matters for the root cause
            found = self.attempts.due(now, self.gate.slots)
            if found is not None:
                sends += self._ask(found) if isinstance(found, AskStacks) else self._judge(now, found)
            if self.state is HubState.RUN:
                sends += self._look(now)
        if self.state is HubState.RUN and self._reports is not None and now >= self._reports.non_finite.deadline:
            sends += self._tell_non_finite()
            failure = self._reports.non_finite.failure()
            if failure is not None and not self.attempts.stop_reason:
                self.attempts.failed(now, failure)
        if self.state is HubState.END and now >= self._leave_deadline:
            self.departed.update(self._hosts)
        return sends

    def _tell_non_finite(self) -> Sends:
        """The line about the first value that is not finite, on all hosts, where one is known and not told yet."""
        text = self._reports.non_finite.take() if self._reports is not None else ""
        return [(host, Notice(text)) for host in self._hosts if text and host not in self.departed]

    def _beat(self, now: float) -> Sends:
        """Heartbeats, both ways: the hub tells a host whose heartbeats do not arrive."""
        hosts = [host for host in self.gate.hellos if host not in self.departed]
        sends: Sends = [(host, Heartbeat(unheard=self._loss.unheard(now, host))) for host in hosts]
        news = self._loss.news(now)
        return [*sends, (self.leader, Notice(news))] if news else sends

    def _overdue(self, now: float) -> Sends:
        """Hosts that came have the time for their preparation besides; a restart has its own limit."""
        if self.state is HubState.RESTART:
            return self._fail(now, self.attempts.not_ready_again(self._limits.restart_s, self.gate.unready))
        failure = self.gate.overdue(now)
        return self._fail(now, failure) if failure else []

    # -- decisions -------------------------------------------------------------------------------------------------

    def _compare(self, now: float, host: str) -> Sends:
        mismatch = self.gate.mismatch(host)
        return self._fail(now, mismatch) if mismatch else []

    def _open(self, now: float) -> Sends:
        """All hosts start, once all are ready and no failure waits for its judgement."""
        if not self.gate.all_ready or self.attempts.root_cause.window_open:
            return []
        futile = self.attempts.begins({host: ready.newest for host, ready in self.gate.ready.items()})
        if futile is not None:
            return self._fail(now, futile)
        self.state = HubState.RUN
        go = self.gate.go(self.attempts.number)
        return [(host, go) for host in self._hosts]

    def _look(self, now: float) -> Sends:
        """Asks all hosts to look at their ranks, if all are silent and that is due."""
        question = self.attempts.look_due(now, self.departed)
        return self._ask(question) if question else []

    def _ask(self, question: AskStacks | LookClosely) -> Sends:
        return [(host, question) for host in self._hosts if host not in self.departed]

    def _judge(self, now: float, root_cause: Failure) -> Sends:
        """Another attempt where one may help, else the end."""
        if self._reports is not None:
            root_cause = self._reports.non_finite.explain(root_cause)
        decision = self.attempts.judge(root_cause, self.departed)
        if isinstance(decision, Failure):
            return self._fail(now, decision)
        told = self._tell_non_finite()
        self.state = HubState.RESTART
        self.gate.wait_again(now)
        return [*told, *((host, decision) for host in self._hosts)]

    def _fail(self, now: float, failure: Failure) -> Sends:
        return self._end(now, Verdict("failed", failure.code, failure))

    def _end(self, now: float, verdict: Verdict) -> Sends:
        if self.state is HubState.END:
            return []
        leave_s = self._limits.kill_s + self._limits.leave_s
        self._ended_at_gate = self.state is HubState.GATE and now < self.gate.deadline
        if self._ended_at_gate:  # hosts that come a little later hear it too, not only that nobody is there
            leave_s = max(leave_s, min(LATE_S, self.gate.deadline - now))
        told = self._tell_non_finite()
        number, self.state = self.attempts.number, HubState.END
        self.verdict = self._reports.add_to(verdict, number) if self._reports is not None else verdict
        self.gate.hellos |= self.gate.rivals.hellos
        self.attempts.root_cause.close()
        self._leave_deadline = now + leave_s
        return [*told, *((host, End(self.verdict)) for host in self.gate.hellos if host not in self.departed)]
