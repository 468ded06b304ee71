"""The supervisor: one host's main process.

It passes what happens to the state machine (control/member/member.py), and does what the state machine asks for; it decides
nothing. attempt.py has the part that concerns the ranks.
"""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Callable

from algorun.common.errors import UserError
from algorun.common.event_loop import STOP_SIGNALS, Loop, Timer
from algorun.common.fast_dataclasses import replace
from algorun.control.failures.failure import Failure, Raised
from algorun.control.failures.non_finite import NonFiniteValue
from algorun.control.hang.host_look import HostLook
from algorun.control.member.actions import Action, Conclude, EndProcesses, Signal, Start, ToHub, Warn
from algorun.control.member.member import Member, MemberState
from algorun.control.wire.messages import (
    AskStacks,
    ClockTold,
    DaemonEnded,
    Done,
    End,
    Fail,
    Go,
    Heartbeat,
    Hello,
    LookClosely,
    Message,
    NodeAlive,
    Notice,
    Refuse,
    Restart,
    SaveFailed,
    StacksSent,
    StartDaemon,
    Stop,
    Verdict,
    Welcome,
)
from algorun.job.config import JobConfig
from algorun.machine.probe import Machine
from algorun.network import channel
from algorun.network.channel import ControlChannel
from algorun.outcome import report
from algorun.plan import agreement, render
from algorun.plan.engines.base import Programs
from algorun.plan.plan import Plan, first_host
from algorun.timing.clock import LEAVING, STOPPING, WAITING, Clock

from .attempt import DRAIN_POLL_S, Attempt
from .engines.registry import longest_temporary
from .explain import explained, public
from .measuring.measuring import Measuring
from .output.logs import Console
from .preparing.readiness import Readiness
from .processes.owner import Owner
from .ranks.rank_port import Fields, Peer, RankPort
from .tools import Tools


class Supervisor:
    """One host's main process. Raises UserError where it can have no folder for sockets."""

    def __init__(self, config: JobConfig, machine: Machine, programs: Programs, console: Console, clock: Clock) -> None:
        loop, owner, self._clock = Loop(), Owner(self._child_ended), clock
        host, leader = config.resources.current_host, config.resources.hosts[0]
        self._member = Member(loop.now(), host, leader, config.limits)
        longest = longest_temporary(config.launch.engine.value)
        self._port = RankPort(loop, self._rank_raised, self._peer_message, longest)
        logs = config.paths.output_data / "logs"
        self._tools = Tools(loop, owner, console, programs, self._port.folder, logs, self._send, self._broken)
        self._measuring = Measuring(self._tools, config, machine, clock.begin)
        self._readiness = Readiness(self._tools, config, machine, clock)
        self._timer: Timer | None = None
        self._last_lines: Timer | None = None  # looks again whether a filter has passed on the last lines
        self._channel: ControlChannel | None = None
        self._plan: Plan | None = None  # once the hosts have met
        self._attempt: Attempt | None = None  # while it runs, or is the last one
        self._announced = ""  # the next attempt as the log has announced it, until it starts
        self._verdict: Verdict | None = None
        self._stop_asked = False  # by a signal to this host, also after the verdict

    @property
    def _host(self) -> str:
        return self._readiness.config.resources.current_host

    @property
    def _leads(self) -> bool:
        return self._host == self._readiness.config.resources.hosts[0]

    @property
    def _now(self) -> float:
        return self._tools.loop.now()

    # -- the run ---------------------------------------------------------------------------------------------------

    def run(self, error: str = "") -> tuple[Verdict, int]:
        """Runs the job to its end on this host; returns the verdict and the world size (0 if the hosts never met).

        `error` is a configuration error of this host that the other hosts must hear.
        """
        tools = self._tools
        report.begin(self._readiness.config.paths, self._host)
        unfit = self._guard()
        handlers: dict[int, Callable[[], None]] = {signal.SIGCHLD: tools.owner.reap}
        for number, name in STOP_SIGNALS.items():
            if signal.getsignal(number) is signal.SIG_IGN:  # nohup
                continue
            handlers[number] = functools.partial(self._asked_to_stop, name)
        with tools.loop.signals(handlers), contextlib.ExitStack() as closing:
            closing.callback(tools.loop.close)
            closing.callback(self._port.close)
            tools.owner.clean_up(tools.run_dir)
            closing.callback(self._readiness.close)
            closing.callback(tools.owner.close)
            self._join(closing, error)
            if unfit is not None and not error:
                self._broken(unfit)
            elif not error and self._readiness.prepare():
                self._member.preparing(self._now)
            self._arm()
            tools.loop.run()
        assert self._verdict is not None
        return self._verdict, self._plan.world_size if self._plan else 0

    def _guard(self) -> Failure | None:
        """Starts the watcher. Returns why it cannot: the other hosts hear it, and nothing starts here."""
        try:
            self._tools.owner.guard()
        except UserError as error:
            return Failure.of(error, self._host)
        return None

    @property
    def known(self) -> tuple[JobConfig, Machine, Programs]:
        """The job, this host and its programs as far as they are known by now: the program only once its code is here."""
        return self._readiness.config, self._readiness.machine, self._readiness.programs

    @property
    def plan_to_hold(self) -> Plan | None:
        """What the ranks of this host were; None if none has started, or a stop was asked for: then nobody waits for a look."""
        stopped = self._member.stopping or self._stop_asked or self._tools.loop.has_stop
        return self._plan if self._clock.attempts and not stopped else None

    def result_written(self) -> None:
        """Trackers take what is left from now on."""
        self._measuring.result_written()

    def flush(self) -> None:
        """Gives trackers time to take what is left. Call it last, after `result_written`."""
        self._measuring.flush()

    @property
    def failed_ranks(self) -> list[int]:
        """The ranks of this host that have failed in the last attempt."""
        return self._member.failed_ranks

    def _join(self, closing: contextlib.ExitStack, error: str) -> None:
        """Meets the other hosts."""
        config, machine = self._readiness.config, self._readiness.machine
        hello = Hello(self._host, agreement.at_first(config, machine), error)
        if self._leads:
            self._member.heard(self._now)
        self._channel = channel.to_hub(self._tools.loop, config, machine, hello, self)
        closing.callback(self._channel.close)
        closing.callback(self._close_attempt)

    def _close_attempt(self) -> None:
        """Writes what is left to write now that no host waits for this one, and closes all files of the attempt."""
        if self._attempt is not None:
            self._measuring.keep_trace(final=True)
            self._attempt.close()

    # -- events ----------------------------------------------------------------------------------------------------

    def _broken(self, failure: Failure) -> None:
        """Something of this host other than a rank has failed."""
        self.do(self._member.broken(self._now, failure))

    def receive(self, message: Message) -> None:
        """A message of the hub. Raises ValueError on one that no hub may send."""
        member, now = self._member, self._now
        member.heard(now)
        match message:
            case Go():
                self._go(message)
            case Restart(attempt, cause):
                self._restart(attempt, cause)
            case AskStacks():
                if self._attempt is not None:
                    self._attempt.ask_for_stacks()
                else:
                    self._send(StacksSent())
            case LookClosely(pause_s):
                if self._attempt is not None:
                    self._attempt.look_closely(pause_s)
                else:
                    self.do(member.looked(HostLook()))
            case Stop(why):
                self._report_ends()
                self.do(member.stop(now, why))
            case End(verdict):
                self.do(member.end(now, verdict))
            case Refuse(why):
                self.do(member.refused(now, why))
            case NodeAlive() | StartDaemon() | DaemonEnded():
                if self._readiness.engine is not None:
                    self._readiness.engine.heard(message)
            case Notice(text):
                self._tools.warn(text)
                self._measuring.noticed(text)
            case ClockTold():
                self._measuring.clock_told(message, now)
            case Welcome() | Heartbeat():
                self._look()
                self._arm()
            case other:
                raise ValueError(f"the hub cannot send {type(other).__name__}")

    def _look(self) -> None:
        """Looks at this host and its ranks, at every heartbeat of the hub."""
        attempt = self._attempt if self._member.state is MemberState.RUN else None
        runs = attempt is not None and (not attempt.ranks.all_ended or attempt.engine.has_nodes)
        samples = self._measuring.sample(self._now, runs=runs)
        if attempt is not None:
            attempt.look(samples)

    def hub_lost(self, reason: str) -> None:
        """The hub has closed the connection."""
        self.do(self._member.hub_lost(self._now, reason))

    def _asked_to_stop(self, name: str) -> None:
        self._stop_asked = True
        self._report_ends()
        why = f"{name} on {self._host}"
        self.do(self._member.stop_asked(self._now, why, interrupt=name == "SIGINT"))

    def _report_ends(self) -> None:
        if self._attempt is not None:
            self._attempt.ranks.report_ends()

    def _rank_raised(self, told: Raised | NonFiniteValue) -> None:
        if self._attempt is None:
            return
        if isinstance(told, Raised):
            self._attempt.rank_raised(told)
        elif self._member.state is MemberState.RUN and not self._member.stopping:
            self._send(self._attempt.found_non_finite(told))

    def _peer_message(self, peer: Peer, message: Fields | None) -> None:
        if self._attempt is not None:
            self._attempt.peer_message(peer, message)

    def _child_ended(self, pid: int, returncode: int) -> None:
        if self._readiness.is_preparation(pid):
            self._member.prepared()
            self._readiness.prepared(returncode)
        elif self._readiness.is_check(pid):
            self._readiness.checked(returncode)
        elif self._measuring.child_ended(pid, returncode, self._now):
            pass
        elif self._attempt is not None:
            self._attempt.child_ended(pid, returncode)
        elif self._readiness.engine is not None:
            self._readiness.engine.child_ended(pid, returncode)

    # -- attempts --------------------------------------------------------------------------------------------------

    def _go(self, go: Go) -> None:
        """All hosts have met: every host makes the same plan."""
        config, engine = self._readiness.config, self._readiness.engine
        assert engine is not None  # the hub has heard that this host is ready
        engine.met(go)
        try:
            self._plan = self._readiness.planned(go)
        except UserError as error:  # every host finds it, and the hub makes all name one of them
            self._broken(Failure.of(error, self._host))
            return
        ranks = {rank.local_rank: rank.rank for rank in self._plan.host(self._host).ranks}
        bundled = config.entry.kind == "bundled"
        self.do(self._member.go(self._now, go, ranks, bundled=bundled, code=self._plan.cwd))

    def _start(self) -> None:
        """Starts the ranks, once the entrypoint's options are known to be right."""
        assert self._plan is not None
        launch = functools.partial(self._launch, self._plan)
        self._readiness.when_options_are_right(self._plan.world_size, launch)

    def _launch(self, planned: Plan) -> None:
        """Starts the ranks of a plan, unless the job has ended or restarted in the meantime."""
        engine = self._readiness.engine
        if engine is None or planned is not self._plan or self._member.state is not MemberState.RUN:
            return
        if self._member.stopping:  # before any rank was there to be told
            self.do(self._member.all_ranks_gone(self._now))
            engine.refuse()
            return
        self._announced = ""
        if self._leads and not planned.attempt:
            self._tools.console.say(render.rank_map(planned))
        if self._host == first_host(self._readiness.config):
            self._measuring.track(self._readiness.config, self._readiness.programs, planned.world_size)
        try:
            self._attempt = Attempt(
                self._tools, self._readiness.config, planned, engine, self._measuring, self._member, self
            )
            self._attempt.start()
        except UserError as error:
            self._broken(Failure.of(error, self._host))
        self._tools.owner.adopt()
        if self._attempt is not None:
            self._attempt.look_whether_done()  # a host without ranks has nothing to wait for

    def _restart(self, attempt: int, cause: Failure) -> None:
        """The attempt has failed, and another one follows: ends its ranks. After that this host gets ready once more."""
        moments = self._attempt.moments() if self._attempt is not None else []
        if self._member.state is MemberState.RUN and not self._member.stopping:  # else it does not restart
            self._clock.attempt_failed(self._now, max((each.steps for each in moments), default=0))
        actions = self._member.restart(self._now, attempt)
        if not actions:
            return
        report.write_attempt(self._readiness.config.paths, attempt, cause)
        if self._attempt is not None:
            self._attempt.over()
        if self._leads:
            self._announced = f"attempt {attempt + 1}/{cause.attempts}"
            self._tools.console.say(f"algorun: {cause.headline()}\nalgorun: {self._announced} follows")
        self.do(actions)
        self._look_whether_cleared()

    def _look_whether_cleared(self) -> None:
        """Waits until nothing of the failed attempt lives, then gets ready for the next one."""
        if self._member.state is not MemberState.RESTART:
            return
        self._tools.owner.reap()
        filtered = self._attempt is not None and self._attempt.ranks.filtered(self._now)
        if self._ranks_run or filtered or self._tools.owner.kill_left():
            self._tools.loop.after(DRAIN_POLL_S, self._look_whether_cleared)
            return
        if self._attempt is not None:
            self._attempt.clear_away()
            self._attempt = None
        report.forget_user_failure_text(self._readiness.config.paths)
        self._member.cleared(self._now)
        self._arm()
        self._readiness.ready()

    @property
    def _ranks_run(self) -> bool:
        """True while a rank of this host has not ended."""
        return self._attempt is not None and not self._attempt.ranks.all_ended

    # -- actions ---------------------------------------------------------------------------------------------------

    def do(self, actions: list[Action]) -> None:
        """Does what the state machine asks for, and comes back at its next deadline."""
        for action in actions:
            match action:
                case ToHub(message):
                    self._tell_hub(message)
                case Start():
                    self._start()
                case Signal(number):
                    self._signal(number)
                case Warn(text):
                    self._tools.warn(text)
                case Conclude(verdict, own):
                    self._conclude(self._with_seen(verdict) if own else verdict)
                case EndProcesses():
                    self._tools.owner.close()
        self._arm()

    def _tell_hub(self, message: Message) -> None:
        """Sends a message to the hub; a failure with what this machine knows of it."""
        match message:
            case Done():
                self._mark(WAITING)
            case Fail(failure):
                failure = self._explained(failure)
                self._member.explained(failure)
                message = Fail(failure)
            case SaveFailed(failure):
                message = SaveFailed(self._explained(failure))
        self._send(message)

    def _explained(self, failure: Failure) -> Failure:
        """The failure with what this host knows of it, without the job's secrets."""
        config, attempt = self._readiness.config, self._attempt
        if attempt is None:
            return explained(failure, config, None)
        failure = replace(failure, step=attempt.step_of(failure.rank), user_text=report.user_failure_text(config.paths))
        return explained(failure, config, attempt.before)

    def _with_seen(self, verdict: Verdict) -> Verdict:
        """A verdict of this host alone, with whom it has heard of."""
        seen = self._channel.seen if self._channel is not None else ""
        if verdict.failure is None or not seen:
            return verdict
        return replace(verdict, failure=replace(verdict.failure, message=f"{verdict.failure.message} ({seen})"))

    def _signal(self, number: int) -> None:
        if self._member.stopping and self._ranks_run:
            self._mark(STOPPING)
        self._readiness.kill()
        if self._attempt is not None:
            self._attempt.signal(number)
        if number == signal.SIGKILL:
            self._leave(forced=True)

    def _conclude(self, verdict: Verdict) -> None:
        """The job is over: writes the outcome down, lets the engine go."""
        self._verdict = verdict
        self._clock.ranks(self._now, self._attempt.moments() if self._attempt is not None else [])
        self._mark(LEAVING)
        config, attempt, engine = self._readiness.config, self._attempt, self._readiness.engine
        own = public(report.user_failure_text(config.paths), config) if attempt is not None else ""
        warning = report.write(config.paths, verdict, own)
        if warning:
            self._tools.console.say(warning)
        if self._announced:
            why = verdict.failure.headline() if verdict.failure else verdict.why
            self._tools.say(f"{self._announced} was not started: {why}")
        if attempt is not None:
            self._say_links()
            attempt.over()
        if engine is not None and verdict.failure is not None:
            engine.keep_logs()
        if attempt is not None:
            attempt.leave(well=verdict.kind == "ok")
        self._measuring.finish()
        self._tools.loop.post(self.leave)

    def _say_links(self) -> None:
        from algorun.outcome import links  # the end is near: nobody waits for an import any more

        config = self._readiness.config
        for note in links.notes(config.paths):
            self._tools.warn(public(note, config))

    def _send(self, message: Message) -> None:
        """To the hub, wherever it is."""
        if self._channel is not None:
            self._channel.send(message)

    def drain(self) -> None:
        """Reads the exceptions that ranks have reported: a rank's exception arrives before its end."""
        self._port.drain()

    def leave(self) -> None:
        """Leaves once nothing is left to wait for: own ranks, the engine's orderly end, the other hosts."""
        self._leave(forced=False)

    def _leave(self, *, forced: bool) -> None:
        if self._last_lines is not None:
            self._last_lines.cancel()
        leaves = self._member.state is MemberState.LEAVE and not forced
        if leaves and self._attempt is not None and self._attempt.ranks.filtered(self._now):
            self._last_lines = self._tools.loop.after(DRAIN_POLL_S, self.leave)
            return
        engine_runs = self._attempt is not None and self._attempt.engine.busy
        self.do(self._member.leave(ranks=self._ranks_run, engine=engine_runs, forced=forced))
        if self._member.state is MemberState.BYE and (self._channel is None or self._channel.finished):
            self._member.left()
            self._tools.loop.stop()

    def _mark(self, cause: str) -> None:
        """From now on this host's time goes to `cause` (timing/clock.py)."""
        self._clock.mark(self._now, cause)

    def tell(self, text: str) -> None:
        """A line of the launcher's own."""
        self._tools.console.say(f"algorun: {text}")

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._tools.loop.at(self._member.deadline, lambda: self.do(self._member.tick(self._now)))
