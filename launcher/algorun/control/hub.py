"""The hub: meets all hosts, hears the first failure, gives one verdict to all. A pure state machine.

GATE --all hosts said hello, and then ready--> RUN --all done | stop | a failure--> END --all said bye--> finished
                                                |  ^
                              a failure, budget v  | all ready again
                                               RESTART

Every method takes the current time (seconds of the leader's monotonic clock) and returns the messages to send;
`deadline` says when `tick` wants to be called. Every state has a deadline, so every state is left.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from enum import Enum

from algorun.errors import ExitCode
from algorun.job.settings import Limits

from .failure import Failure, RankLeft
from .first_failure import Blame
from .gate import Gate, listed
from .hang import Stack
from .heartbeat import Hearing, Pulse
from .inquiry import Inquiry
from .messages import (
    AskStacks,
    Bye,
    DaemonEnded,
    Done,
    End,
    Fail,
    Hang,
    Heartbeat,
    Hello,
    Message,
    Notice,
    Ready,
    Refuse,
    Restart,
    SaveFailed,
    StacksSent,
    StartDaemon,
    Stop,
    Verdict,
)
from .restarts import Restarts
from .rivals import Rivals
from .waiting import Waiting

LATE_S = 10.0  # how long a verdict at the gate waits for hosts that have not come yet

Sends = list[tuple[str, Message]]


class State(Enum):
    GATE = "gate"
    RUN = "run"
    RESTART = "restart"
    END = "end"


class Hub:
    """State of the job as the leader sees it. `hosts` is the file's order; the leader is the first.

    `restarts` is how many attempts may follow the first one.
    """

    def __init__(self, now: float, hosts: Sequence[str], limits: Limits, restarts: int = 0) -> None:
        self.state = State.GATE
        self.verdict: Verdict | None = None
        self._hosts, self._limits = tuple(hosts), limits
        self._gate, self._restarts = Gate(hosts), Restarts(restarts)
        self._rivals, self._waiting = Rivals(hosts[0]), Waiting(now)
        self._ready_deadline = now + limits.gate_s  # of the gate, and then of every restart
        self._preparing = False
        self._pulse = Pulse(now, limits.heartbeat_s)
        self._hearing = Hearing(now, self._pulse, limits)
        self._done: set[str] = set()
        self._gone: set[str] = set()  # said bye, or lost
        self._blame = Blame(limits.blame_s)
        self._cause: Failure | None = None  # of the restart under way
        self._inquiry: Inquiry | None = None  # into a hang
        self._stopping = ""
        self._failed_saves = Blame(limits.blame_s)  # saves that failed in a stop
        self._note = ""
        self._leave_deadline = 0.0
        self._ended_at_gate = False

    @property
    def leader(self) -> str:
        return self._hosts[0]

    @property
    def finished(self) -> bool:
        """True once every other host has left, or had its time to: after a verdict at the gate also the late ones."""
        awaited = self._hosts if self._ended_at_gate else self._gate.hellos
        return self.state is State.END and self._gone >= set(awaited) - {self.leader}

    @property
    def deadline(self) -> float:
        """When `tick` is due; never, once finished. Silence is looked for at every beat."""
        if self.finished:
            return math.inf
        due = min(self._pulse.next_at, self._hearing.due_at)
        if self.state in (State.GATE, State.RESTART):
            due = min(due, self._ready_deadline)
        if self._blame.deadline is not None:
            due = min(due, self._blame.deadline)
        if self._inquiry is not None:
            due = min(due, self._inquiry.deadline)
        if self.state is State.END:
            due = min(due, self._leave_deadline)
        return due

    @property
    def missing(self) -> list[str]:
        """Hosts that have not come, as long as they are waited for."""
        return self._gate.missing if self.state is State.GATE else []

    @property
    def came(self) -> list[str]:
        """Hosts that have said hello."""
        return list(self._gate.hellos)

    @property
    def rivals(self) -> bool:
        """True while another leader waits for a verdict."""
        return self.state is State.GATE and bool(self._rivals.hellos)

    def expects(self, host: str) -> bool:
        """True for a host of this job."""
        return host in self._hosts

    def hello(self, now: float, hello: Hello) -> Sends:
        """A host has come. A stranger or a second host of the same name is refused, the job goes on."""
        host = hello.host
        refusal = self._gate.refusal(host) or self._rivals.refusal(host)
        if refusal:
            return [(host, Refuse(refusal))]
        if self.state is State.GATE and self._rivals.takes(hello):
            return [(host, Heartbeat())]  # no verdict yet
        self._gate.hellos[host] = hello
        self._hearing.heard(now, host)
        if self.verdict is not None:
            return [(host, End(self.verdict))]
        if hello.error:
            return self._fail(now, Failure("configuration", host, ExitCode.CONFIGURATION, hello.error))
        if self._gate.all_came:
            self._waiting = Waiting(now)
        return self._compare(now, host)

    def receive(self, now: float, host: str, message: Message) -> Sends:
        """A message of a host that has joined. Raises ValueError on one that no host may send."""
        sends = self.heartbeat(now, host)
        match message:
            case Heartbeat():
                return sends
            case Ready():
                return sends + self.ready(now, host, message)
            case Fail(failure):
                return sends + self.fail(now, host, failure)
            case SaveFailed(failure):
                self.save_failed(now, host, failure)
                return sends
            case RankLeft():
                return sends + self.rank_left(now, host, message)
            case Hang(idle_s):
                return sends + self.hang(now, idle_s)
            case Stack():
                self.stack(message)
                return sends
            case StacksSent():
                return sends + self.stacks_sent(now, host)
            case Stop(why):
                return sends + self.stop(now, host, why)
            case Done(note):
                return sends + self.done(now, host, note)
            case Bye(why, informed):
                return sends + self.bye(now, host, informed, why)
            case StartDaemon() if host == self.leader:
                return [*sends, (message.host, message)]
            case DaemonEnded():
                return [*sends, (self.leader, message)]
            case other:
                raise ValueError(f"a host cannot send {type(other).__name__}")

    def looked(self, now: float, answered: Collection[str]) -> Sends:
        """All missing hosts were asked whether they lead too; `answered` do, and have no verdict."""
        newest = self._rivals.judge(answered) if self.state is State.GATE else ""
        if not newest:
            return []
        self._gate.hellos |= self._rivals.hellos
        return self._compare(now, newest)

    def told(self, now: float, host: str, verdict: Verdict) -> Sends:
        """Another leader has ended the job. Late hosts whose files name this one hear it here."""
        sends = self._end(now, verdict) if self.state is State.GATE and verdict.kind == "failed" else []
        if self.state is State.END:
            self._gone.add(host)
        return sends

    def waits(self, now: float) -> str:
        """A line about the hosts that the others wait for at the gate, where one is due."""
        line = self._gate.awaited() if self.state is State.GATE and len(self._hosts) > 1 else ""
        return line if line and self._waiting.due(now) else ""

    def ready(self, now: float, host: str, ready: Ready) -> Sends:
        """A host has its code and could start, or could start again. When all could, they do."""
        if self.state not in (State.GATE, State.RESTART) or host not in self._gate.hellos:
            return []
        if not self._gate.ready:
            self._waiting = Waiting(now)
        self._gate.ready[host] = ready
        return self._compare(now, host) or self._open(now)

    def unproven(self, host: str) -> None:
        """Somebody came as this host without the job's token: no reason to end the job, but to name it at the gate."""
        self._gate.unproven(host)

    def heartbeat(self, now: float, host: str) -> Sends:
        self._hearing.heard(now, host)
        return []

    def back(self, now: float, host: str) -> Sends:
        """A host has connected anew. One that has counted as lost hears the verdict, and is waited for."""
        self._hearing.heard(now, host)
        late = host in self._gone
        self._gone.discard(host)
        return [(host, End(self.verdict))] if late and self.verdict is not None else []

    def fail(self, now: float, host: str, failure: Failure) -> Sends:
        """A host reports a failure. The first one opens the blame window; what comes within it is weighed too."""
        if self.state is State.END or host not in self._gate.hellos:
            return []
        if failure.attempt != self._restarts.attempt:  # said before this host heard of the restart
            return []
        if self.state is not State.RUN:  # it cannot get ready; nothing runs yet that could be its cause
            return self._fail(now, failure)
        news = self._blame.add(now, replace(failure, host=host))
        if news and not self._stopping:  # ranks elsewhere may see stopped peers vanish before they hear of the stop
            self._weigh_from(now)
        return []

    def rank_left(self, now: float, host: str, left: RankLeft) -> Sends:
        """A rank has left with 0. Nothing follows from that alone: uneven work ends like this too."""
        if self.state is State.RUN and not self._stopping and left.attempt == self._restarts.attempt:
            self._blame.left(now, replace(left, host=host))
        return []

    def hang(self, now: float, idle_s: float) -> Sends:
        """A rank somewhere makes no steps: all hosts are asked what their ranks are doing."""
        if self.state is not State.RUN or self._stopping or self._inquiry or self._blame.deadline is not None:
            return []
        return self._ask(Inquiry(now, idle_s))

    def stack(self, stack: Stack) -> None:
        """What one rank is doing."""
        if self._inquiry is not None and len(self._inquiry.stacks) < self._gate.slots:
            self._inquiry.stacks.append(stack)

    def stacks_sent(self, now: float, host: str) -> Sends:
        """A host has told of all its ranks."""
        if self._inquiry is None:
            return []
        self._inquiry.answered.add(host)
        return self._hangs(now) if self._inquiry.answered >= set(self._hosts) - self._gone else []

    def save_failed(self, now: float, host: str, failure: Failure) -> None:
        """A rank could not save while stopping: the others still do, and then the job has failed."""
        self._failed_saves.add(now, replace(failure, host=host))

    def stop(self, now: float, host: str, why: str) -> Sends:
        """A host was told to stop: all stop. A failure that was reported before still decides, but not a restart."""
        if self.state is State.END or self._stopping:
            return []
        self._stopping, self._inquiry = why, None
        if self._blame:  # they were to be weighed with the answers
            self._weigh_from(now)
        if self.state is not State.RUN:  # no rank runs that could save anything
            return self._end(now, Verdict("stopped", ExitCode.OK, None, why))
        return [(each, Stop(why)) for each in self._gate.hellos]

    def done(self, now: float, host: str, note: str = "") -> Sends:
        """All ranks of a host have ended well (or were stopped). The leader's note becomes the verdict's."""
        if self.state is not State.RUN:
            return []
        self._done.add(host)
        if host == self.leader:
            self._note = note
        weighing = self._blame.deadline is not None or (self._inquiry is not None and self._blame)
        if weighing or self._done != set(self._hosts):
            return []
        if self._stopping and self._failed_saves:
            return self._fail(now, self._restarts.counted(self._failed_saves.root(self._gate.slots)))
        kind = "stopped" if self._stopping else "ok"
        again = f" restarts={self._restarts.attempt}" if self._restarts.attempt else ""
        return self._end(now, Verdict(kind, ExitCode.OK, None, self._stopping or f"{self._note}{again}".strip()))

    def bye(self, now: float, host: str, informed: Collection[str] = (), why: str = "") -> Sends:
        """A host has ended its processes and leaves. Before a verdict it has given up, and nobody else would say so.

        `informed` are the hosts that know another leader's verdict: they will not come.
        """
        if self.state is not State.END:
            return self.lost(now, host, f"host lost: it gave up: {why}" if why else "host lost: it left before the end")
        self._gone |= {host, *informed}
        return []

    def lost(self, now: float, host: str, reason: str) -> Sends:
        """The connection to a host has ended."""
        self._rivals.hellos.pop(host, None)
        if host not in self._gate.hellos or host in self._gone:
            return []
        self._gone.add(host)
        if self.state is State.END:
            return []
        self._blame.add(now, Failure("lost", host, ExitCode.LOST, reason))
        self._weigh_from(now)
        return []

    def tick(self, now: float) -> Sends:
        """Deadlines."""
        sends: Sends = []
        beat = self._pulse.due(now)
        if beat:
            sends += self._beat(now)
        if beat or now >= self._hearing.due_at:
            sends += self._silence(now)
        if self.state in (State.GATE, State.RESTART) and now >= self._ready_deadline:
            sends += self._overdue(now)
        if self._inquiry is not None and now >= self._inquiry.deadline:
            sends += self._hangs(now)
        if self.state is not State.END and self._blame.due(now, self._gate.slots):
            sends += self._weigh(now)
        if self.state is State.END and now >= self._leave_deadline:
            self._gone |= set(self._hosts)
        return sends

    def _beat(self, now: float) -> Sends:
        """Signs of life, both ways: a host whose own do not arrive is told so."""
        sends: Sends = []
        for host in self._gate.hellos:
            if host not in self._gone:
                sends.append((host, Heartbeat(unheard=self._hearing.unheard(now, host))))
        news = self._hearing.news(now)
        return [*sends, (self.leader, Notice(news))] if news else sends

    def _silence(self, now: float) -> Sends:
        limit_s, others = self._limits.heartbeat_timeout_s, self._gate.hellos.keys() - self._gone - {self.leader}
        silent = self._hearing.silent(now, others)
        return [
            each for host in silent for each in self.lost(now, host, f"host lost: no sign of life for {limit_s:g} s")
        ]

    def _overdue(self, now: float) -> Sends:
        """Hosts that came have the time for their preparation besides; a restart has its own limit."""
        limits = self._limits
        if self.state is State.RESTART:
            assert self._cause is not None
            late = [host for host in self._hosts if host not in self._gate.ready]
            note = f"no restart: not ready again after {limits.restart_s:g} s: {listed(late)}"
            return self._fail(now, replace(self._cause, note=note))
        if self._gate.all_came and not self._preparing:
            self._preparing, self._ready_deadline = True, now + limits.prepare_s + limits.blame_s
            return []
        return self._fail(now, self._gate.absent(limits.gate_s + (limits.prepare_s if self._preparing else 0.0)))

    def _compare(self, now: float, host: str) -> Sends:
        mismatch = self._gate.mismatch(host)
        return self._fail(now, mismatch) if mismatch else []

    def _open(self, now: float) -> Sends:
        if (
            self.state not in (State.GATE, State.RESTART)
            or not self._gate.all_ready
            or self._blame.deadline is not None
        ):
            return []
        newest = {host: ready.newest for host, ready in self._gate.ready.items()}
        futile = self._restarts.begins(newest, self._cause)
        if futile is not None:
            return self._fail(now, futile)
        self.state = State.RUN
        return [(host, self._gate.go(self._restarts.attempt)) for host in self._hosts]

    def _weigh_from(self, now: float) -> None:
        """The first failure opens the blame window; a hang that is being looked into has begun before it."""
        if self._inquiry is None:
            self._blame.open(now)

    def _ask(self, inquiry: Inquiry) -> Sends:
        """All hosts are asked what their ranks are doing."""
        self._inquiry, self._blame.deadline = inquiry, None
        return [(host, AskStacks()) for host in self._hosts if host not in self._gone]

    def _weigh(self, now: float) -> Sends:
        """The time to report is over. Where ranks have only waited in vain, those that live are asked first."""
        in_vain = [] if self._stopping else self._blame.in_vain(self._gate.slots)
        return self._ask(Inquiry(now, in_vain=in_vain)) if in_vain else self._judge(now, self._root)

    @property
    def _root(self) -> Failure:
        return self._blame.root(self._gate.slots)

    def _hangs(self, now: float) -> Sends:
        """The rank that holds the others up is blamed, unless something else has failed before."""
        assert self._inquiry is not None
        gone, ranks = self._blame.gone(), self._gate.slots
        failure = self._inquiry.failure(now, self.leader, self._restarts.attempt, gone, ranks)
        if failure is None:
            return self._judge(now, self._inquiry.kept(self._root))
        self._blame.overrule(now, failure)
        return self._judge(now, self._root)

    def _judge(self, now: float, failure: Failure) -> Sends:
        """Another attempt where one may help, else the end."""
        failure = self._blame.complete(self._restarts.counted(failure))
        final = self._restarts.final(failure)
        if final is None and (self._stopping or self._gone):
            gone = [host for host in self._hosts if host in self._gone]
            lost = f"{listed(gone)} {'was' if len(gone) == 1 else 'were'} lost"
            why = f"the job was told to stop ({self._stopping})" if self._stopping else lost
            final = replace(failure, note=f"no restart: {why}")
        if final is not None:
            return self._fail(now, final)
        self._restarts.attempt += 1
        self.state, self._cause = State.RESTART, failure
        self._ready_deadline = now + self._limits.kill_s + self._limits.restart_s
        self._inquiry, self._note = None, ""
        self._blame.clear()
        self._done.clear()
        self._gate.ready.clear()
        again = Restart(self._restarts.attempt, failure)
        return [(host, again) for host in self._hosts]

    def _fail(self, now: float, failure: Failure) -> Sends:
        return self._end(now, Verdict("failed", failure.code, failure))

    def _end(self, now: float, verdict: Verdict) -> Sends:
        if self.state is State.END:
            return []
        leave_s = self._limits.kill_s + self._limits.leave_s
        self._ended_at_gate = self.state is State.GATE and now < self._ready_deadline
        if self._ended_at_gate:  # hosts that come a little later hear it too, not only that nobody is there
            leave_s = max(leave_s, min(LATE_S, self._ready_deadline - now))
        self.state, self.verdict = State.END, verdict
        self._gate.hellos |= self._rivals.hellos
        self._blame.deadline = self._inquiry = None
        self._leave_deadline = now + leave_s
        return [(host, End(verdict)) for host in self._gate.hellos if host not in self._gone]
