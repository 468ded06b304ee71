"""The supervisor: one host's main process.

It turns the world's events into those of the state machines (control/) and does what they say; it decides nothing.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from algorun.control import messages
from algorun.control.failure import Failure, Raised
from algorun.control.member import Action, Conclude, Member, Signal, Start, State, ToHub, Warn
from algorun.control.messages import (
    AskStacks,
    DaemonEnded,
    End,
    Go,
    Heartbeat,
    Hello,
    Message,
    Nonce,
    Notice,
    Ready,
    Refuse,
    Restart,
    StacksSent,
    StartDaemon,
    Stop,
    Verdict,
    Welcome,
)
from algorun.errors import UserError
from algorun.event_loop import STOP_SIGNALS, Loop, Timer
from algorun.job.config import JobConfig
from algorun.job.values import Sourced
from algorun.machine.probe import Machine
from algorun.network import channel
from algorun.network.channel import Channel
from algorun.outcome import report
from algorun.plan import agreement, cluster, plan, render
from algorun.plan.cluster import Cluster, Meeting
from algorun.plan.engines.base import Programs
from algorun.plan.plan import Plan

from .attempt import Attempt, explained
from .logs import Console
from .processes import Owner
from .rank_port import Peer, RankPort
from .readiness import Readiness
from .tools import Tools

DRAIN_POLL_S = 0.05  # between two looks at what stopped shells have left
STACKS_S = 0.7  # from the question to the ranks until their answers are read


class Supervisor:
    """One host's main process."""

    def __init__(self, config: JobConfig, machine: Machine, programs: Programs, console: Console) -> None:
        self._job, self._machine, self._programs, self._console = config, machine, programs, console
        self._host = config.resources.current_host
        self._leader = config.resources.hosts[0]
        self._loop = Loop()
        self.owner = Owner(self._child_ended)
        now, bundled = self._loop.now(), config.entry.kind == "bundled"
        self._member = Member(
            now, self._host, self._leader, config.limits, bundled=bundled, explain=self._explained
        )  # fmt: skip
        self._before: Any = None  # what the kernel had counted when the ranks began
        self._timer: Timer | None = None
        self._channel: Channel | None = None
        self._port: RankPort | None = None
        self._tools: Tools  # made with the run folder, as the next one is
        self._readiness: Readiness
        self._attempt: Attempt | None = None
        self._cluster: Cluster | None = None
        self._plan: Plan | None = None
        self._interrupts = 0
        self._done_sent = False
        self._bye_sent = False
        self._silence_told = False
        self._announced = ""  # the attempt that follows, until it starts

    @property
    def config(self) -> JobConfig:
        """The job as far as it is known."""
        return self._readiness.config

    # -- the run ---------------------------------------------------------------------------------------------------

    def run(self, error: str = "") -> tuple[Verdict, int]:
        """Runs the job to its end on this host; returns the verdict and the world size (0 if the hosts never met).

        `error` is a configuration error of this host that the other hosts must hear.
        """
        report.begin(self._job.paths)
        self.owner.guard()
        handlers: dict[int, Callable[[], None]] = {signal.SIGCHLD: self.owner.reap}
        for number, name in STOP_SIGNALS.items():
            if signal.getsignal(number) is signal.SIG_IGN:  # nohup
                continue
            handlers[number] = functools.partial(self._asked_to_stop, name)
        with self._loop.signals(handlers):
            try:
                self._settle_in()
                self._join(error)
                if not error and self._readiness.prepare():
                    self._do(self._member.preparing(self._loop.now()))
                self._arm()
                self._loop.run()
            finally:
                self._close()
        verdict = self._member.verdict
        assert verdict is not None
        return verdict, self._cluster.world_size if self._cluster else 0

    def _settle_in(self) -> None:
        self._port = RankPort(self._loop, self._rank_raised, self._peer_message)
        self.owner.clean_up(self._port.folder)
        logs = self._job.paths.output_data / "logs"
        self._tools = Tools(self._loop, self.owner, self._console, self._programs, self._port.folder, logs)
        self._readiness = Readiness(self._tools, self._job, self._machine, self._ready, self._cannot_start, self._warn)

    def _join(self, error: str) -> None:
        """Meets the other hosts."""
        hello = Hello(self._host, agreement.at_first(self.config, self._machine), error)
        if self._host == self._leader:
            self._member.joined(self._loop.now())
        self._channel = channel.to_hub(
            self._loop, self.config, self._machine, hello, self._received,
            lambda reason: self._do(self._member.hub_lost(self._loop.now(), reason)), self._leave, self._tell,
        )  # fmt: skip

    # -- getting ready ---------------------------------------------------------------------------------------------

    def _ready(self, ready: Ready) -> None:
        self._member.ranks.bundled = self.config.entry.kind == "bundled"
        self.send(ready)

    def _cannot_start(self, failure: Failure) -> None:
        self._do(self._member.broken(self._loop.now(), failure))

    def _warn(self, text: str) -> None:
        self._tell(f"warning: {text}")

    def _tell(self, text: str) -> None:
        self._console.say(f"algorun: {text}")

    # -- events ----------------------------------------------------------------------------------------------------

    def _received(self, message: Message) -> None:
        """A message of the hub."""
        member, now = self._member, self._loop.now()
        member.heard(now)
        match message:
            case Go():
                self._go(message)
            case Restart(attempt, cause):
                self._restart(attempt, cause)
            case AskStacks():
                self._ask_for_stacks()
            case Stop(why):
                self._do(member.stop(now, why))
            case End(verdict):
                self._do(member.end(now, verdict))
            case Refuse(why):
                self._do(member.refused(now, why))
            case StartDaemon() | DaemonEnded():
                if self._attempt is not None:
                    self._attempt.daemon(message)
            case Notice(text):
                self._warn(text)
            case Nonce() | Welcome() | Heartbeat():
                self._look_after_ranks()
                self._arm()
            case other:
                raise ValueError(f"the hub cannot send {type(other).__name__}")

    def _go(self, go: Go) -> None:
        slots = {host: Sourced(count, f"{host} at the gate") for host, count in go.slots.items()}
        port, engine_port = (Sourced(number, "free on the leader") for number in (go.master_port, go.engine_port))
        meeting = Meeting(Sourced(go.master_addr, "leader"), port, engine_port, go.attempt)
        try:
            self._cluster = cluster.resolve(self.config.resources.hosts, slots, self.config.launch.outside)
            self._plan = plan.make(self.config, self._cluster, self._readiness.machine, self._programs, meeting)
        except UserError as error:  # the same on every host, but all are to name the same one
            self._cannot_start(Failure("configuration", self._host, error.code, str(error)))
            return
        ranks = {rank.local_rank: rank.rank for rank in self._plan.host(self._host).ranks}
        self._do(self._member.go(self._loop.now(), go, ranks))

    def _restart(self, attempt: int, cause: Failure) -> None:
        """This attempt's ranks end, then this host is ready once more."""
        actions = self._member.restart(self._loop.now(), attempt)
        if not actions:
            return
        report.write_attempt(self.config.paths, attempt, cause)
        if self._attempt is not None:
            self._attempt.hush()
        if self._host == self._leader:
            self._announced = f"attempt {attempt + 1}/{cause.attempts}"
            self._console.say(f"algorun: {cause.headline()}\nalgorun: {self._announced} follows")
        self._do(actions)
        self._look_whether_cleared()

    def _look_whether_cleared(self) -> None:
        """Once the ranks of the failed attempt have ended, nothing else of it may live on."""
        if self._member.state is not State.RESTART:
            return
        self.owner.reap()
        if (self._attempt is not None and not self._attempt.ended) or self.owner.kill_left():
            self._loop.after(DRAIN_POLL_S, self._look_whether_cleared)
            return
        if self._attempt is not None:
            self._attempt.clear_away()
            self._attempt = None
        report.forget_said(self.config.paths)
        self._done_sent = False
        self._do(self._member.cleared(self._loop.now()))
        self._readiness.ready()

    def _asked_to_stop(self, name: str) -> None:
        self._do(self._member.stop_asked(self._loop.now(), f"{name} on {self._host}"))
        self._interrupts += name == "SIGINT"
        if self._interrupts > 1:
            self._do(self._member.hurry(self._loop.now()))

    def _rank_raised(self, raised: Raised) -> None:
        if self._attempt is None:
            return
        local_rank, is_rank = self._attempt.place(raised.rank, raised.pid)
        if local_rank is not None:
            self._do(self._member.rank_raised(self._loop.now(), local_rank, raised, is_rank=is_rank))

    def _rank_exited(self, local_rank: int, returncode: int, tail: str) -> None:
        if self._port is not None:
            self._port.drain()
        step = self._attempt.step(local_rank) if self._attempt is not None else 0
        self._do(self._member.rank_exited(self._loop.now(), local_rank, returncode, tail, step))
        self._look_whether_done()

    def _look_whether_done(self) -> None:
        """All ranks of this host have ended: the hub hears it, and in a stop only once their sessions are empty."""
        if self._attempt is None or not self._attempt.ended:
            return
        if self._member.state is State.LEAVE:
            self._leave()
        elif self._member.stopping and not self._attempt.quiet:
            self._loop.after(DRAIN_POLL_S, self._look_whether_done)
        elif not self._done_sent:
            self._done_sent = True
            note = self._public(report.figures(self.config.paths.summary)) if self._host == self._leader else ""
            self._do(self._member.all_ranks_gone(self._loop.now(), note))

    def _child_ended(self, pid: int, returncode: int) -> None:
        if self._readiness.is_preparation(pid):
            self._do(self._member.prepared(self._loop.now()))
            self._readiness.prepared(returncode)
        elif self._readiness.is_check(pid):
            self._readiness.checked(returncode)
        elif self._attempt is not None:
            self._attempt.child_ended(pid, returncode)

    def _peer_message(self, peer: Peer, message: dict[str, Any] | None) -> None:
        if self._attempt is not None:
            self._attempt.peer_message(peer, message)
            self._look_whether_done()

    def _broken(self, text: str, tail: str) -> None:
        """The engine or the start of a rank has failed."""
        self._do(self._member.broken(self._loop.now(), Failure("engine", self._host, 1, text, traceback=tail)))

    def _explained(self, failure: Failure) -> Failure:
        if failure.kind == "gate":
            seen = self._channel.seen if self._channel is not None else ""
            return replace(failure, message=f"{failure.message} ({seen})") if seen else failure
        from algorun.outcome import redaction  # only a failure needs it

        if self._attempt is None:
            failure = explained(failure, None, self.config.paths.written)
        else:
            failure = replace(self._attempt.explain(failure), said=report.said(self.config.paths))
        return redaction.failure(failure, self.config)

    def _public(self, text: str) -> str:
        """A text of the user's program, without the job's secrets."""
        if not text:
            return ""
        from algorun.outcome import redaction

        return redaction.text(text, self.config)

    # -- ranks that hang -------------------------------------------------------------------------------------------

    def _look_after_ranks(self) -> None:
        """With every sign of life of the hub: does each rank still make steps, or at least print?"""
        if self._attempt is None or self._member.state is not State.RUN:
            return
        now, limit_s = self._loop.now(), self.config.limits.hang_s
        idle_s = self._attempt.stalled(now, limit_s)
        if idle_s:
            self._do(self._member.hangs(now, idle_s))
        silent = [] if self._silence_told else self._attempt.silent(now, limit_s)
        if silent:
            self._silence_told = True
            ranks = ", ".join(map(str, silent))
            self._warn(f"rank {ranks}: no output for {limit_s:.0f} s, and no steps of an optimizer to go by")

    def _ask_for_stacks(self) -> None:
        if self._attempt is not None:
            self._attempt.ask_for_stacks()
        self._loop.after(STACKS_S, self._send_stacks)

    def _send_stacks(self) -> None:
        for stack in self._attempt.stacks() if self._attempt is not None else ():
            report.write_stack(self.config.paths, stack)
            self.send(messages.short(stack))
        self.send(StacksSent())

    # -- actions ---------------------------------------------------------------------------------------------------

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case ToHub(message):
                    self.send(message)
                case Start():
                    self._start()
                case Signal(number):
                    self._readiness.kill()
                    if self._attempt is not None:
                        self._attempt.signal(number)
                    if number == signal.SIGKILL and self._member.state is State.LEAVE:
                        self._leave(forced=True)
                case Warn(text):
                    self._warn(text)
                case Conclude(verdict):
                    self._conclude(verdict)
        self._arm()

    def send(self, message: Message) -> None:
        """To the hub, wherever it is."""
        if self._channel is not None:
            self._channel.send(message)

    def _start(self) -> None:
        assert self._plan is not None
        launch = functools.partial(self._launch, self._plan)
        self._readiness.when_options_are_right(self._plan.world_size, launch)

    def _launch(self, plan: Plan) -> None:
        """The ranks of an attempt, unless the job has gone another way meanwhile."""
        if plan is not self._plan or self._member.state is not State.RUN:
            return
        if self._member.stopping:  # before any rank was there to be told
            self._done_sent = True
            self._do(self._member.all_ranks_gone(self._loop.now()))
            return
        self._announced = ""
        if self._host == self._leader and not plan.attempt:
            self._console.say(render.rank_map(plan))
        try:
            self._attempt = Attempt(
                self._tools, plan, self._host, self.config.paths.written,
                self._rank_exited, self._broken, self._leave, self.send,
            )  # fmt: skip
            self._attempt.start()
        except UserError as error:
            self._cannot_start(Failure("configuration", self._host, error.code, str(error)))
        self.owner.adopt()

    def _conclude(self, verdict: Verdict) -> None:
        own = self._public(report.said(self.config.paths)) if self._attempt is not None else ""
        warning = report.write(self.config.paths, verdict, own)
        if warning:
            self._console.say(warning)
        if self._announced:
            why = verdict.failure.headline() if verdict.failure else verdict.why
            self._console.say(f"algorun: {self._announced} was not started: {why}")
        if self._attempt is not None:
            self._attempt.leave()
        self._loop.post(self._leave)

    def _leave(self, forced: bool = False) -> None:
        """Leaves once nothing is left to wait for: own ranks, the engine's orderly end, the other hosts."""
        if self._member.state is not State.LEAVE:
            return
        verdict, attempt = self._member.verdict, self._attempt
        orderly = verdict is not None and verdict.kind == "ok"
        busy = attempt is not None and (not attempt.ended or (orderly and attempt.engine_busy))
        if busy and not forced and not self._bye_sent:
            return
        if not self._bye_sent:
            self._bye_sent = True
            self.owner.close()
            self.send(messages.bye(verdict))
        if self._channel is None or self._channel.finished:
            self._member.left()
            self._loop.stop()

    def _close(self) -> None:
        for closable in (self._attempt, self._channel, self.owner, self._readiness, self._port):
            if closable is not None:
                closable.close()
        self._loop.close()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.at(self._member.deadline, lambda: self._do(self._member.tick(self._loop.now())))
