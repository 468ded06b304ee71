"""The supervisor: one host's main process.

It passes what happens to the state machine (control/member.py), and does what the state machine asks for; it decides
nothing. attempt_runner.py has the part that concerns the ranks.
"""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from algorun.common.errors import UserError
from algorun.common.event_loop import STOP_SIGNALS, Loop, Timer
from algorun.common.fast_dataclasses import replace
from algorun.control.actions import Action, Conclude, EndProcesses, Signal, Start, ToHub, Warn
from algorun.control.failure import Failure, Raised
from algorun.control.member import Member, State
from algorun.control.messages import (
    AskStacks,
    ClockTold,
    DaemonEnded,
    Done,
    End,
    Go,
    Heartbeat,
    Hello,
    Message,
    NodeAlive,
    Notice,
    Ready,
    Refuse,
    Restart,
    StartDaemon,
    Stop,
    Verdict,
    Welcome,
)
from algorun.job.config import JobConfig
from algorun.machine.probe import Machine
from algorun.network import channel
from algorun.network.channel import Channel
from algorun.outcome import report
from algorun.plan import agreement
from algorun.plan.engines.base import Programs
from algorun.timing.clock import LEAVING, STOPPING, WAITING, Clock

from .attempt_runner import AttemptRunner
from .logs import Console
from .processes import Owner
from .rank_port import LONGEST_FOR_RAY, LONGEST_TEMPORARY, Fields, Peer, RankPort
from .readiness import Readiness
from .times_file import TimesFile
from .tools import Tools

if TYPE_CHECKING:
    from .host_sampling import HostSampling
    from .step_trace import StepTrace


class Supervisor:
    """One host's main process."""

    def __init__(self, config: JobConfig, machine: Machine, programs: Programs, console: Console, clock: Clock) -> None:
        self._job, self._machine, self._programs, self._console = config, machine, programs, console
        self._loop, self._clock = Loop(), clock
        self.owner = Owner(self._child_ended)
        leader = config.resources.hosts[0]
        self._member = Member(self._loop.now(), self._host, leader, config.limits, self._explained)
        self._timer: Timer | None = None
        self._channel: Channel | None = None
        self._port: RankPort | None = None
        self._tools: Tools  # made with the run folder, as are _readiness and _runner
        self._readiness: Readiness
        self._runner: AttemptRunner
        self._sampling: HostSampling | None = None  # once ranks run

    @property
    def _host(self) -> str:
        return self._job.resources.current_host

    # -- the run ---------------------------------------------------------------------------------------------------

    def run(self, error: str = "") -> tuple[Verdict, int]:
        """Runs the job to its end on this host; returns the verdict and the world size (0 if the hosts never met).

        `error` is a configuration error of this host that the other hosts must hear.
        """
        report.begin(self._job.paths, self._host)
        unfit = self._guard()
        handlers: dict[int, Callable[[], None]] = {signal.SIGCHLD: self.owner.reap}
        for number, name in STOP_SIGNALS.items():
            if signal.getsignal(number) is signal.SIG_IGN:  # nohup
                continue
            handlers[number] = functools.partial(self._asked_to_stop, name)
        with self._loop.signals(handlers), contextlib.ExitStack() as closing:
            closing.callback(self._loop.close)
            self._settle_in(closing)
            self._join(closing, error)
            if unfit is not None and not error:
                self.cannot_start(unfit)
            elif not error and self._readiness.prepare():
                self._member.preparing(self._loop.now())
            self._arm()
            self._loop.run()
        verdict, cluster = self._member.verdict, self._runner.cluster
        assert verdict is not None
        return verdict, cluster.world_size if cluster else 0

    def _guard(self) -> Failure | None:
        """Starts the watcher. Returns why it cannot: the other hosts hear it, and nothing starts here."""
        try:
            self.owner.guard()
        except UserError as error:
            return Failure.of(error, self._host)
        return None

    @property
    def known(self) -> tuple[JobConfig, Machine, Programs]:
        """The job, this host and its programs as far as they are known by now: the program only once its code is here."""
        if not hasattr(self, "_readiness"):
            return self._job, self._machine, self._programs
        return self._readiness.config, self._readiness.machine, self._readiness.programs

    @property
    def failed_ranks(self) -> list[int]:
        """The ranks of this host that have failed in the last attempt."""
        return self._member.failed_ranks

    def _settle_in(self, closing: contextlib.ExitStack) -> None:
        """Makes the run folder, and the objects that work in it."""
        longest = LONGEST_FOR_RAY if self._job.launch.engine.value.has_driver else LONGEST_TEMPORARY
        self._port = RankPort(self._loop, self._rank_raised, self._peer_message, longest)
        closing.callback(self._port.close)
        self.owner.clean_up(self._port.folder)
        folder = self._job.paths.output_data
        times = TimesFile(folder, self._host, self.warn)
        self._tools = tools = Tools(
            self._loop,
            self.owner,
            self._console,
            self._programs,
            self._port.folder,
            folder / "logs",
            times,
            self._step_trace(self._port.folder),
        )
        self._readiness = Readiness(tools, self._job, self._machine, self)
        closing.callback(self._readiness.close)
        closing.callback(self.owner.close)
        self._runner = AttemptRunner(tools, self._readiness, self._member, self)

    def _step_trace(self, run_dir: str) -> StepTrace | None:
        if self._job.trace_steps is None:
            return None
        from .step_trace import StepTrace  # few jobs trace steps

        return StepTrace(self._job, self._job.trace_steps, run_dir, self.send, self.tell)

    def _join(self, closing: contextlib.ExitStack, error: str) -> None:
        """Meets the other hosts."""
        hello = Hello(self._host, agreement.at_first(self._job, self._machine), error)
        if self._host == self._job.resources.hosts[0]:
            self._member.heard(self._loop.now())
        self._channel = channel.to_hub(self._loop, self._job, self._machine, hello, self)
        closing.callback(self._channel.close)
        closing.callback(self._runner.close)

    # -- events ----------------------------------------------------------------------------------------------------

    def cannot_start(self, failure: Failure) -> None:
        """Something of this host other than a rank has failed."""
        self.do(self._member.broken(self._loop.now(), failure))

    def receive(self, message: Message) -> None:
        """A message of the hub. Raises ValueError on one that no hub may send."""
        member, now = self._member, self._loop.now()
        member.heard(now)
        match message:
            case Go():
                self._runner.go(message)
            case Restart(attempt, cause):
                self._restart(attempt, cause)
            case AskStacks():
                self._runner.ask_for_stacks()
            case Stop(why):
                self.do(member.stop(now, why))
            case End(verdict):
                self.do(member.end(now, verdict))
            case Refuse(why):
                self.do(member.refused(now, why))
            case NodeAlive():
                self._runner.node_alive(message)
            case StartDaemon() | DaemonEnded():
                self._runner.daemon(message)
            case Notice(text):
                self.warn(text)
                from algorun.control.pace import SLOW  # no start needs it

                if text.startswith(SLOW):
                    self._tools.times.slow(text)
            case ClockTold():
                if self._tools.trace is not None:
                    self._tools.trace.answered(message, now)
            case Welcome() | Heartbeat():
                self._look_after_sampling()
                self._runner.look_after_ranks(self._sampling.take() if self._sampling is not None else ())
                self._arm()
            case other:
                raise ValueError(f"the hub cannot send {type(other).__name__}")

    def _look_after_sampling(self) -> None:
        """Measures the host from the moment on at which ranks run, without holding up their start."""
        if self._sampling is not None:
            self._sampling.look(self._loop.now())
        elif self._runs and self._job.figures:
            from .host_sampling import HostSampling, setup

            self._sampling = HostSampling(self._tools, setup(self._job, self._machine, self._clock.begin))
            self._sampling.start(self._loop.now())

    @property
    def _runs(self) -> bool:
        """Whether the program runs here: ranks, or a node of an engine with a driver."""
        has_driver = self._job.launch.engine.value.has_driver
        return self._member.state is State.RUN and (self._runner.ranks_run or has_driver)

    def _restart(self, attempt: int, cause: Failure) -> None:
        """The attempt has failed, and another one follows."""
        moments = self._runner.moments  # before the attempt is cleared away
        if self._member.state is State.RUN and not self._member.stopping:  # else it does not restart
            self._clock.attempt_failed(self._loop.now(), max((each.steps for each in moments), default=0))
        self._runner.restart(attempt, cause)

    def hub_lost(self, reason: str) -> None:
        """The hub has closed the connection."""
        self.do(self._member.hub_lost(self._loop.now(), reason))

    def _asked_to_stop(self, name: str) -> None:
        why = f"{name} on {self._host}"
        self.do(self._member.stop_asked(self._loop.now(), why, interrupt=name == "SIGINT"))

    def _rank_raised(self, raised: Raised) -> None:
        self._runner.rank_raised(raised)

    def _peer_message(self, peer: Peer, message: Fields | None) -> None:
        self._runner.peer_message(peer, message)

    def _child_ended(self, pid: int, returncode: int) -> None:
        if self._readiness.is_preparation(pid):
            self._member.prepared()
            self._readiness.prepared(returncode)
        elif self._readiness.is_check(pid):
            self._readiness.checked(returncode)
        elif self._sampling is not None and self._sampling.is_sampler(pid):
            self._sampling.ended(returncode, self._loop.now())
        else:
            self._runner.child_ended(pid, returncode)

    def _explained(self, failure: Failure) -> Failure:
        """The failure with what this host knows of it."""
        if failure.kind == "gate":
            seen = self._channel.seen if self._channel is not None else ""
            return replace(failure, message=f"{failure.message} ({seen})") if seen else failure
        return self._runner.explained(failure)

    # -- actions ---------------------------------------------------------------------------------------------------

    def do(self, actions: list[Action]) -> None:
        """Does what the state machine asks for, and comes back at its next deadline."""
        for action in actions:
            match action:
                case ToHub(message):
                    if isinstance(message, Done):
                        self.mark(WAITING)
                    self.send(message)
                case Start():
                    self._runner.start()
                case Signal(number):
                    if self._member.stopping and self._runner.ranks_run:
                        self.mark(STOPPING)
                    self._readiness.kill()
                    self._runner.signal_ranks(number)
                    if number == signal.SIGKILL:
                        self._leave(forced=True)
                case Warn(text):
                    self.warn(text)
                case Conclude(verdict):
                    self._clock.ranks(self._loop.now(), self._runner.moments)
                    self.mark(LEAVING)
                    self._runner.conclude(verdict)
                    if self._sampling is not None:
                        self._sampling.finish()
                    self._loop.post(self.leave)
                case EndProcesses():
                    self.owner.close()
        self._arm()

    def send(self, message: Message) -> None:
        """To the hub, wherever it is."""
        if self._channel is not None:
            self._channel.send(message)

    def drain(self) -> None:
        """Reads the exceptions that ranks have reported: a rank's exception arrives before its end."""
        if self._port is not None:
            self._port.drain()

    def leave(self) -> None:
        """Leaves once nothing is left to wait for: own ranks, the engine's orderly end, the other hosts."""
        self._leave(forced=False)

    def _leave(self, *, forced: bool) -> None:
        runner = self._runner
        self.do(self._member.leave(ranks=runner.ranks_run, engine=runner.engine_runs, forced=forced))
        if self._member.state is State.BYE and (self._channel is None or self._channel.finished):
            self._member.left()
            self._loop.stop()

    def mark(self, cause: str) -> None:
        """From now on this host's time goes to `cause` (timing/clock.py)."""
        self._clock.mark(self._loop.now(), cause)

    def divide(self, cause: str, moments: Sequence[tuple[float, str]]) -> None:
        """Divides the last span of `cause`: each moment is of the monotonic clock."""
        self._clock.divide(self._loop.now(), cause, moments)

    def start_head(self, ready: Ready) -> None:
        """Starts what the leader of an engine with a driver can start before the hosts have met. Raises UserError."""
        self._runner.start_head(ready)

    def warn(self, text: str) -> None:
        """A warning of the launcher's own."""
        self.tell(f"warning: {text}")

    def tell(self, text: str) -> None:
        """A line of the launcher's own."""
        self._console.say(f"algorun: {text}")

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.at(self._member.deadline, lambda: self.do(self._member.tick(self._loop.now())))
