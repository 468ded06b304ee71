"""Hub and members wired together without sockets: what happens between hosts, with a clock and an order of its own."""

from __future__ import annotations

import random

from algorun.common.fast_dataclasses import replace
from algorun.control.failures.failure import Raised
from algorun.control.hang.hang import Stack, StackFrame
from algorun.control.hang.standstill import PAUSE_S, host_look
from algorun.control.host_loss import RESET_S
from algorun.control.hub import hub_messages
from algorun.control.hub.hub import Hub
from algorun.control.member.actions import Conclude, Signal, Start, ToHub
from algorun.control.member.member import Member, MemberState
from algorun.control.wire import messages, wire
from algorun.control.wire.messages import (
    AskStacks,
    Bye,
    End,
    Go,
    Hello,
    LookClosely,
    Message,
    Notice,
    Ready,
    Restart,
    StacksSent,
    Stop,
    Verdict,
)
from algorun.job.limits import Limits

LIMITS = Limits()
MISSED = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1234"  # what a peer's end looks like

TIME_OUT = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)\n"


def hello(host: str, **digest: str) -> Hello:
    return Hello(host, {"version": "1", **digest})


def ready(host: str, slots: int = 2, **digest: str) -> Ready:
    leads = host == "algo-1"
    return Ready(slots, {"program": "a", **digest}, "algo-1" if leads else "", 1234 if leads else 0)


class Job:
    """Hub and members wired together: messages arrive in order per host, hosts in any order."""

    def __init__(self, count: int, seed: int = 0, restarts: int = 0, limits: Limits = LIMITS) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.hosts = [f"algo-{i + 1}" for i in range(count)]
        self.hub = Hub(0.0, self.hosts, limits, restarts)
        self.members = {host: Member(0.0, host, "algo-1", limits) for host in self.hosts}
        self.to_hub: dict[str, list] = {host: [] for host in self.hosts}
        self.to_host: dict[str, list] = {host: [] for host in self.hosts}
        self.verdicts: dict[str, Verdict] = {}
        self.signals: dict[str, list[int]] = {host: [] for host in self.hosts}
        self.dead: set[str] = set()
        self.begun: dict[str, list[int]] = {host: [] for host in self.hosts}  # the attempts that each host has started
        self.mute: set[str] = set()  # hosts that do not tell what their ranks do
        self.works: dict[int, str] = {}  # what ranks do when their hosts look at them; the others stand
        self.frames: tuple[StackFrame, ...] = ()
        self.workers: dict[str, dict[str, list[Stack]]] = {}  # of the engine's node on each host, by their names
        self.looks: dict[str, int] = dict.fromkeys(self.hosts, 0)  # how often each host has looked
        self.notices: list[str] = []
        self.checkpoints = dict.fromkeys(self.hosts, 0.0)

    def act(self, host: str, actions: list) -> None:
        for action in actions:
            match action:
                case ToHub(message):
                    self.to_hub[host].append(message)
                case Conclude(verdict):
                    assert host not in self.verdicts, "two verdicts on one host"
                    self.verdicts[host] = verdict
                    self.to_hub[host].append(Bye())
                case Signal(number):
                    self.signals[host].append(number)
                case Start(go):
                    self.begun[host].append(go.attempt)

    def send(self, sends: list) -> None:
        for host, message in sends:
            if host not in self.dead:
                self.to_host[host].append(message)

    def join(self, host: str, **digest: str) -> None:
        """Says hello, and is ready at once; what is under way may be overtaken by others."""
        self.arrive(host, **digest)
        self.get_ready(host)

    def get_ready(self, host: str, **digest: str) -> None:
        self.members[host].prepared()
        self.to_hub[host].append(replace(ready(host, **digest), newest=self.checkpoints[host]))

    def arrive(self, host: str, **digest: str) -> None:
        """Says hello, and prepares from now on."""
        self.members[host].heard(self.now)
        self.send(self.hub.hello(self.now, hello(host, **digest)))
        self.members[host].preparing(self.now)

    def step(self) -> bool:
        """Delivers one message, of a host chosen by chance; False when none is under way."""
        ways = [(d, h) for d in ("up", "down") for h in self.hosts if (self.to_hub if d == "up" else self.to_host)[h]]
        if not ways:
            return False
        direction, host = self.random.choice(ways)
        if direction == "up":
            self.hear(host, self.to_hub[host].pop(0))
        else:
            self.receive(host, self.to_host[host].pop(0))
        return True

    def hear(self, host: str, message: Message) -> None:
        message = wire.decode(wire.encode(message).rstrip(b"\n"))
        self.send(hub_messages.receive(self.hub, self.now, host, message))

    def receive(self, host: str, message: Message) -> None:
        member = self.members[host]
        message = wire.decode(wire.encode(message).rstrip(b"\n"))
        member.heard(self.now)
        match message:
            case Go():
                first = 2 * self.hosts.index(host)
                self.act(host, member.go(self.now, message, {0: first, 1: first + 1}))
            case AskStacks():
                for stack in () if host in self.mute else self.stacks(host):
                    self.to_hub[host].append(messages.short(stack))
                if host not in self.mute:
                    self.to_hub[host].append(StacksSent())
            case LookClosely(pause_s):
                assert 0 < pause_s <= PAUSE_S
                self.looks[host] += 1
                first = 2 * self.hosts.index(host)
                works = {rank: self.works.get(rank, "") for rank in (first, first + 1)}
                self.act(host, [] if host in self.mute else member.looked(host_look(works, "", self.workers.get(host))))
            case Notice(text):
                self.notices.append(text)
            case Restart(attempt, _):
                actions = member.restart(self.now, attempt)
                self.act(host, actions)
                if actions:
                    member.cleared(self.now)
                    self.get_ready(host)
            case Stop(why):
                self.act(host, member.stop(self.now, why))
            case End(verdict):
                self.act(host, member.end(self.now, verdict))

    def stacks(self, host: str) -> list[Stack]:
        """What the two ranks of a host do: all wait but the last rank of all, which sleeps; or all are at `frames`."""
        first = 2 * self.hosts.index(host)
        last = 2 * len(self.hosts) - 1
        waits = StackFrame("/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce")
        own = StackFrame("/opt/ml/code/train.py", 17, "step")
        frames = self.frames or (waits, own)
        return [Stack(r, host, 41, (own,) if r == last and not self.frames else frames) for r in (first, first + 1)]

    def settle(self) -> None:
        while self.step():
            pass

    def pass_time(self, seconds: float) -> None:
        """Time goes on to every deadline in between, as the shells do it."""
        until = self.now + seconds
        for _ in range(100_000):
            live = [m for h, m in self.members.items() if h not in self.dead and m.state is not MemberState.LEFT]
            due = min([self.hub.deadline, *(m.deadline for m in live)])
            if due > until:
                break
            self.now = max(self.now, due)
            self.send(self.hub.tick(self.now))
            for host, member in self.members.items():
                if host not in self.dead and member.state is not MemberState.LEFT:
                    self.act(host, member.tick(self.now))
                    if host in self.verdicts:
                        member.left()
            self.settle()
        else:
            raise AssertionError("a deadline that does not pass")
        self.now = until

    def happen(self, kind: str, host: str, seconds: float) -> None:
        """One event of a running job, as random orders of them are made of."""
        match kind:
            case "done":
                finish(self, host)
            case "fail":
                self.act(host, self.members[host].rank_exited(self.now, 0, 3))
            case "leave":
                self.act(host, self.members[host].rank_exited(self.now, 1, 0))
            case "miss":
                raised = Raised(2 * self.hosts.index(host), 1, self.now, "RuntimeError", MISSED, "")
                self.act(host, self.members[host].rank_raised(self.now, 0, raised, is_rank=True))
            case "hang":
                self.act(host, self.members[host].hangs(self.now, 600.0))
            case "silent":
                self.act(host, self.members[host].silent(600.0))
            case "goes on":
                self.act(host, self.members[host].silent(0.0))
            case "kill":
                self.kill(host)
            case "reset":
                self.reset(host, min(seconds, RESET_S - 0.1))
            case "stop":
                self.act(host, self.members[host].stop_asked(self.now, f"SIGTERM on {host}"))
            case "save":
                self.checkpoints[host] = self.now + 1
            case "wait":
                self.pass_time(seconds)
            case "deliver":
                self.step()

    def reset(self, host: str, back_s: float) -> None:
        """The connection of a host is reset, and it is back after some time, if it lives then."""
        if host == "algo-1":
            return
        self.send(self.hub.reset(self.now, host, "connection reset"))
        self.pass_time(back_s)
        if host not in self.dead:
            self.send(self.hub.reconnected(self.now, host))

    def kill(self, host: str) -> None:
        self.dead.add(host)
        self.to_host[host].clear()
        self.to_hub[host].clear()
        if host == "algo-1":
            for other in self.hosts[1:]:
                self.act(other, self.members[other].hub_lost(self.now, "hub lost: connection closed"))
        else:
            self.send(self.hub.lost(self.now, host, "host lost: connection closed"))


def running(count: int, seed: int = 0, restarts: int = 0, limits: Limits = LIMITS) -> Job:
    job = Job(count, seed, restarts, limits)
    for host in job.hosts:
        job.join(host)
    job.settle()
    assert all(member.state is MemberState.RUN for member in job.members.values())
    return job


def finish(job: Job, host: str, code: int = 0) -> None:
    for local in (0, 1):
        job.act(host, job.members[host].rank_exited(job.now, local, code))
    job.act(host, job.members[host].all_ranks_gone(job.now))
