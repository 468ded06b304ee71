"""The hub: meets all hosts, hears the first failure, gives one verdict to all. A pure state machine.

GATE --all hosts said hello, and then ready--> RUN --all done | stop | a failure--> END --all said bye--> finished

Every method takes the current time (seconds of the leader's monotonic clock) and returns the messages to send;
`deadline` says when `tick` wants to be called. Every state has a deadline, so every state is left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum

from ..errors import ExitCode
from ..values import Limits
from . import messages
from .failure import Failure, root
from .messages import Go, Hello, Message, Ready, Verdict

LATE_S = 10.0  # how long a verdict at the gate waits for hosts that have not come yet

Sends = list[tuple[str, Message]]


class State(Enum):
    GATE = "gate"
    RUN = "run"
    END = "end"


class Hub:
    """State of the job as the leader sees it. `hosts` is the file's order; the leader is the first."""

    def __init__(self, now: float, hosts: Sequence[str], limits: Limits) -> None:
        self.state = State.GATE
        self.verdict: Verdict | None = None
        self._hosts, self._limits = tuple(hosts), limits
        self._gate_deadline = now + limits.gate_s
        self._hellos: dict[str, Hello] = {}
        self._ready: dict[str, Ready] = {}
        self._heard: dict[str, float] = {}
        self._beat_at = now + limits.heartbeat_s
        self._done: set[str] = set()
        self._gone: set[str] = set()  # said bye, or lost
        self._failures: dict[tuple[str, int | None], tuple[float, Failure]] = {}
        self._blame_deadline: float | None = None
        self._stopping = ""
        self._note = ""
        self._leave_deadline = 0.0
        self._ended_at_gate = False
        self._unproven: set[str] = set()
        self._preparing = False

    @property
    def leader(self) -> str:
        return self._hosts[0]

    @property
    def finished(self) -> bool:
        """True once every other host has left, or had its time to: after a verdict at the gate also the late ones."""
        awaited = self._hosts if self._ended_at_gate else self._hellos
        return self.state is State.END and self._gone >= set(awaited) - {self.leader}

    @property
    def deadline(self) -> float:
        """When `tick` is due; never, once finished."""
        if self.finished:
            return math.inf
        times = [self._beat_at]
        times += [
            heard + self._limits.heartbeat_timeout_s for host, heard in self._heard.items() if self._watched(host)
        ]
        if self.state is State.GATE:
            times.append(self._gate_deadline)
        if self._blame_deadline is not None:
            times.append(self._blame_deadline)
        if self.state is State.END:
            times.append(self._leave_deadline)
        return min(times)

    def hello(self, now: float, hello: Hello) -> Sends:
        """A host has come. A stranger or a second host of the same name is refused, the job goes on."""
        host = hello.host
        if host not in self._hosts:
            return [(host, _refuse(f"{host} is not one of the job's hosts"))]
        if host in self._hellos:
            return [(host, _refuse(f"{host} has said hello already"))]
        self._hellos[host], self._heard[host] = hello, now
        if self.verdict is not None:
            return [(host, messages.end(self.verdict))]
        if hello.error:
            return self._fail_at_gate(now, Failure("configuration", host, ExitCode.CONFIGURATION, hello.error))
        return self._compare(now, {host: each.digest for host, each in self._hellos.items()})

    def ready(self, now: float, host: str, ready: Ready) -> Sends:
        """A host has its code and could start. When all could, they do."""
        if self.state is not State.GATE or host not in self._hellos:
            return []
        self._ready[host] = ready
        return self._compare(now, {host: each.digest for host, each in self._ready.items()}) or self._open(now)

    def unproven(self, host: str) -> None:
        """Somebody came as this host without the job's token: no reason to end the job, but to name it at the gate."""
        if host in self._hosts:
            self._unproven.add(host)

    def heartbeat(self, now: float, host: str) -> Sends:
        self._heard[host] = now
        return []

    def fail(self, now: float, host: str, failure: Failure) -> Sends:
        """A host reports a failure. The first one opens the blame window; what comes within it is weighed too."""
        if self.state is State.END or host not in self._hellos:
            return []
        if self.state is State.GATE:  # it cannot get ready; nothing runs yet that could be its cause
            return self._fail_at_gate(now, failure)
        key = (failure.host, failure.rank)
        if key in self._failures:  # the exit code of a rank whose exception is known
            onset, known = self._failures[key]
            self._failures[key] = (onset, replace(known, code=failure.code))
            return []
        self._failures[key] = (now - max(0.0, failure.age_s), failure)
        if self._stopping:  # ranks elsewhere may see stopped peers vanish before they hear of the stop
            return []
        if self._blame_deadline is None:
            self._blame_deadline = now + self._limits.blame_s
        return []

    def stop(self, now: float, host: str, why: str) -> Sends:
        """A host was told to stop: all stop. A failure that was reported before still decides."""
        if self.state is State.END or self._stopping:
            return []
        self._stopping = why
        if self.state is State.GATE:
            return self._end(now, Verdict("stopped", ExitCode.OK, None, why))
        return [(each, {"type": "stop", "why": why}) for each in self._hellos]

    def done(self, now: float, host: str, note: str = "") -> Sends:
        """All ranks of a host have ended well (or were stopped). The leader's note becomes the verdict's."""
        self._done.add(host)
        if host == self.leader:
            self._note = note
        if self.state is State.RUN and self._blame_deadline is None and self._done == set(self._hosts):
            kind = "stopped" if self._stopping else "ok"
            return self._end(now, Verdict(kind, ExitCode.OK, None, self._stopping or self._note))
        return []

    def bye(self, now: float, host: str) -> Sends:
        """A host has ended its processes and leaves. Before a verdict it has given up, and nobody else would say so."""
        if self.state is not State.END:
            return self.lost(now, host, "host lost: it left before the end")
        self._gone.add(host)
        return []

    def lost(self, now: float, host: str, reason: str) -> Sends:
        """The connection to a host has ended."""
        if host not in self._hellos or host in self._gone:
            return []
        self._gone.add(host)
        if self.state is State.END:
            return []
        self._failures.setdefault((host, None), (now, Failure("lost", host, ExitCode.LOST, reason)))
        if self._blame_deadline is None:
            self._blame_deadline = now + self._limits.blame_s
        return []

    def tick(self, now: float) -> Sends:
        """Deadlines."""
        sends: Sends = []
        if now >= self._beat_at:
            self._beat_at = now + self._limits.heartbeat_s
            sends += [(host, {"type": "heartbeat"}) for host in self._hellos if host not in self._gone]
        for host, heard in list(self._heard.items()):
            if self._watched(host) and now - heard >= self._limits.heartbeat_timeout_s:
                silence = f"host lost: no sign of life for {self._limits.heartbeat_timeout_s:g} s"
                sends += self.lost(now, host, silence)
        if self.state is State.GATE and now >= self._gate_deadline:
            sends += self._gate_closes(now)
        if self._blame_deadline is not None and now >= self._blame_deadline and self.state is not State.END:
            sends += self._end(now, _failed(root(self._failures.values())))
        if self.state is State.END and now >= self._leave_deadline:
            self._gone |= set(self._hosts)
        return sends

    def _gate_closes(self, now: float) -> Sends:
        """Names the hosts that did not come; those that came have the time for their preparation besides."""
        limit_s = self._limits.gate_s
        missing = [host for host in self._hosts if host not in self._hellos]
        what = "missing"
        if not missing and not self._preparing:
            self._preparing, self._gate_deadline = True, now + self._limits.prepare_s + self._limits.blame_s
            return []
        if not missing:
            limit_s += self._limits.prepare_s
            missing, what = [host for host in self._hosts if host not in self._ready], "not ready"
        shown = ", ".join(missing[:16]) + (f" and {len(missing) - 16} more" if len(missing) > 16 else "")
        text = f"hosts {what} after {limit_s:g} s: {shown}"
        came = [host for host in missing if host in self._unproven][:16]
        if came:
            text += f" ({', '.join(came)} came with another token: ALGORUN_TOKEN, or the training job's ARN)"
        return self._end(now, _failed(Failure("gate", self.leader, ExitCode.GATE, text)))

    def _watched(self, host: str) -> bool:
        return host not in self._gone and host != self.leader

    def _compare(self, now: float, digests: Mapping[str, Mapping[str, str]]) -> Sends:
        """Holds every digest against the leader's, key by key."""
        mine = digests.get(self.leader)
        if mine is None:
            return []
        for host, digest in digests.items():
            if digest == mine:
                continue
            for key in sorted({*mine, *digest}):
                ours, theirs = mine.get(key, "absent"), digest.get(key, "absent")
                if ours != theirs:
                    text = f"{key} differs: {ours} on {self.leader}, {theirs} on {host}"
                    return self._fail_at_gate(now, Failure("mismatch", host, ExitCode.CONFIGURATION, text))
        return []

    def _open(self, now: float) -> Sends:
        if self.state is not State.GATE or len(self._ready) < len(self._hosts) or self._blame_deadline is not None:
            return []
        self.state = State.RUN
        first = next((each for each in map(self._ready.__getitem__, self._hosts) if each.master_port), None)
        go = Go(
            attempt=0,
            master_addr=first.master_addr if first else "",
            master_port=first.master_port if first else 0,
            slots={host: self._ready[host].slots for host in self._hosts},
            engine_port=first.engine_port if first else 0,
        )
        return [(host, go.message()) for host in self._hosts]

    def _fail_at_gate(self, now: float, failure: Failure) -> Sends:
        return self._end(now, _failed(failure))

    def _end(self, now: float, verdict: Verdict) -> Sends:
        if self.state is State.END:
            return []
        leave_s = self._limits.kill_s + self._limits.leave_s
        self._ended_at_gate = self.state is State.GATE and now < self._gate_deadline
        if self._ended_at_gate:  # hosts that come a little later hear it too, not only that nobody is there
            leave_s = max(leave_s, min(LATE_S, self._gate_deadline - now))
        self.state, self.verdict = State.END, verdict
        self._blame_deadline = None
        self._leave_deadline = now + leave_s
        return [(host, messages.end(verdict)) for host in self._hellos if host not in self._gone]


def _failed(failure: Failure) -> Verdict:
    return Verdict("failed", failure.code, failure)


def _refuse(why: str) -> Message:
    return {"type": "refuse", "why": why}
