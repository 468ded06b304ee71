"""Runs the attempts of this host, one after the other: plans them, starts them, watches them, clears them away."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, Protocol

from algorun.control import messages
from algorun.control.actions import Action
from algorun.control.failure import Failure, Raised
from algorun.control.member import Member, State
from algorun.control.messages import DaemonEnded, Go, Message, StacksSent, StartDaemon, Verdict
from algorun.errors import UserError
from algorun.job.config import JobConfig
from algorun.job.values import Sourced
from algorun.outcome import report
from algorun.plan import cluster, plan, render
from algorun.plan.cluster import Cluster, Meeting
from algorun.plan.plan import Plan

from .attempt import Attempt, explained
from .rank_port import Peer
from .readiness import Readiness
from .tools import Tools

DRAIN_POLL_S = 0.05  # between two looks at what stopped shells have left
STACKS_S = 0.7  # from the question to the ranks until their answers are read


class Supervising(Protocol):
    """What a runner needs of its supervisor."""

    def do(self, actions: list[Action]) -> None:
        """Does what the state machine asks for."""

    def send(self, message: Message) -> None:
        """Sends a message to the hub."""

    def drain(self) -> None:
        """Reads what ranks have reported of their exceptions."""

    def leave(self) -> None:
        """Leaves, if nothing is left to wait for."""


class AttemptRunner:
    """`cluster` is None until the hosts have met."""

    def __init__(self, tools: Tools, readiness: Readiness, member: Member, supervisor: Supervising) -> None:
        self._tools, self._readiness, self._member, self._supervisor = tools, readiness, member, supervisor
        self.cluster: Cluster | None = None
        self._plan: Plan | None = None
        self._attempt: Attempt | None = None
        self._announced = ""  # the attempt that follows, until it starts

    @property
    def _config(self) -> JobConfig:
        return self._readiness.config

    @property
    def _host(self) -> str:
        return self._config.resources.current_host

    @property
    def _leads(self) -> bool:
        return self._host == self._config.resources.hosts[0]

    @property
    def ranks_run(self) -> bool:
        """True while a rank of this host has not ended."""
        return self._attempt is not None and not self._attempt.ended

    @property
    def engine_runs(self) -> bool:
        """True while a process of the engine has not ended."""
        return self._attempt is not None and self._attempt.engine_busy

    # -- the start -------------------------------------------------------------------------------------------------

    def go(self, go: Go) -> None:
        """All hosts have met: every host makes the same plan."""
        slots = {host: Sourced(count, f"{host} at the gate") for host, count in go.slots.items()}
        port, engine_port = (Sourced(number, "free on the leader") for number in (go.master_port, go.engine_port))
        meeting = Meeting(Sourced(go.master_addr, "leader"), port, engine_port, go.attempt)
        try:
            self.cluster = cluster.resolve(self._config.resources.hosts, slots, self._config.launch.outside)
            programs = self._tools.programs
            self._plan = plan.make(self._config, self.cluster, self._readiness.machine, programs, meeting)
        except UserError as error:  # the same on every host, but all are to name the same one
            self._cannot_start(error)
            return
        ranks = {rank.local_rank: rank.rank for rank in self._plan.host(self._host).ranks}
        self._supervisor.do(self._member.go(self._now, go, ranks))

    def start(self) -> None:
        """Starts the ranks, once the entrypoint's options are known to be right."""
        assert self._plan is not None
        launch = functools.partial(self._launch, self._plan)
        self._readiness.when_options_are_right(self._plan.world_size, launch)

    def _launch(self, planned: Plan) -> None:
        """The ranks of an attempt, unless the job has gone another way meanwhile."""
        if planned is not self._plan or self._member.state is not State.RUN:
            return
        if self._member.stopping:  # before any rank was there to be told
            self._supervisor.do(self._member.all_ranks_gone(self._now))
            return
        self._announced = ""
        if self._leads and not planned.attempt:
            self._tools.console.say(render.rank_map(planned))
        try:
            self._attempt = Attempt(
                self._tools, planned, self._host, self._config.paths.written,
                self._rank_exited, self._broken, self._supervisor.leave, self._supervisor.send,
            )  # fmt: skip
            self._attempt.start()
        except UserError as error:
            self._cannot_start(error)
        self._tools.owner.adopt()

    def _cannot_start(self, error: UserError) -> None:
        self._fails(Failure("configuration", self._host, error.code, str(error)))

    # -- events ----------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return self._tools.loop.now()

    def rank_raised(self, raised: Raised) -> None:
        """An exception has reached the top in a rank, or in a process below one."""
        if self._attempt is None:
            return
        local_rank, is_rank = self._attempt.place(raised.rank, raised.pid)
        if local_rank is not None:
            self._supervisor.do(self._member.rank_raised(self._now, local_rank, raised, is_rank=is_rank))

    def child_ended(self, pid: int, returncode: int) -> None:
        """A child of this process has ended, a rank or an engine's process."""
        if self._attempt is not None:
            self._attempt.child_ended(pid, returncode)

    def peer_message(self, peer: Peer, message: dict[str, Any] | None) -> None:
        """A message of a process that the engine has started; None is its end."""
        if self._attempt is not None:
            self._attempt.peer_message(peer, message)
            self._look_whether_done()

    def daemon(self, message: StartDaemon | DaemonEnded) -> None:
        """mpirun asks this host for its daemon, or a daemon elsewhere has ended."""
        if self._attempt is not None:
            self._attempt.daemon(message)

    def _rank_exited(self, local_rank: int, returncode: int, tail: str) -> None:
        self._supervisor.drain()
        step = self._attempt.step(local_rank) if self._attempt is not None else 0
        self._supervisor.do(self._member.rank_exited(self._now, local_rank, returncode, tail, step))
        self._look_whether_done()

    def _look_whether_done(self) -> None:
        """All ranks of this host have ended: the hub hears it, and in a stop only once their sessions are empty."""
        if self._attempt is None or not self._attempt.ended:
            return
        if self._member.state in (State.LEAVE, State.BYE):
            self._supervisor.leave()
        elif self._member.stopping and not self._attempt.quiet:
            self._tools.loop.after(DRAIN_POLL_S, self._look_whether_done)
        elif self._member.awaits_ranks:
            note = self._public(report.figures(self._config.paths.summary)) if self._leads else ""
            self._supervisor.do(self._member.all_ranks_gone(self._now, note))

    def _broken(self, text: str, tail: str) -> None:
        """The engine or the start of a rank has failed."""
        self._fails(Failure("engine", self._host, 1, text, traceback=tail))

    def _fails(self, failure: Failure) -> None:
        self._supervisor.do(self._member.broken(self._now, failure))

    # -- ranks that hang -------------------------------------------------------------------------------------------

    def look_after_ranks(self) -> None:
        """With every heartbeat of the hub: does each rank still make steps, or at least print?"""
        if self._attempt is None or self._member.state is not State.RUN:
            return
        limit_s = self._config.limits.hang_s
        idle_s = self._attempt.stalled(self._now, limit_s)
        if idle_s:
            self._supervisor.do(self._member.hangs(self._now, idle_s))
        self._supervisor.do(self._member.ranks_silent(self._attempt.silent(self._now, limit_s), limit_s))

    def ask_for_stacks(self) -> None:
        """Sends the hub the stacks of all ranks, a moment after they were asked."""
        if self._attempt is not None:
            self._attempt.ask_for_stacks()
        self._tools.loop.after(STACKS_S, self._send_stacks)

    def _send_stacks(self) -> None:
        for stack in self._attempt.stacks() if self._attempt is not None else ():
            report.write_stack(self._config.paths, stack)
            self._supervisor.send(messages.short(stack))
        self._supervisor.send(StacksSent())

    # -- the end ---------------------------------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        """To all ranks."""
        if self._attempt is not None:
            self._attempt.signal(number)

    def restart(self, attempt: int, cause: Failure) -> None:
        """This attempt's ranks end, then this host is ready once more."""
        actions = self._member.restart(self._now, attempt)
        if not actions:
            return
        report.write_attempt(self._config.paths, attempt, cause)
        if self._attempt is not None:
            self._attempt.hush()
        if self._leads:
            self._announced = f"attempt {attempt + 1}/{cause.attempts}"
            self._tools.console.say(f"algorun: {cause.headline()}\nalgorun: {self._announced} follows")
        self._supervisor.do(actions)
        self._look_whether_cleared()

    def _look_whether_cleared(self) -> None:
        """Once the ranks of the failed attempt have ended, nothing else of it may live on."""
        if self._member.state is not State.RESTART:
            return
        owner = self._tools.owner
        owner.reap()
        if self.ranks_run or owner.kill_left():
            self._tools.loop.after(DRAIN_POLL_S, self._look_whether_cleared)
            return
        if self._attempt is not None:
            self._attempt.clear_away()
            self._attempt = None
        report.forget_user_failure_text(self._config.paths)
        self._member.cleared(self._now)
        self._supervisor.do([])
        self._readiness.ready()

    def conclude(self, verdict: Verdict) -> None:
        """The job is over: writes the outcome down, lets the engine go."""
        own = self._public(report.user_failure_text(self._config.paths)) if self._attempt is not None else ""
        warning = report.write(self._config.paths, verdict, own)
        if warning:
            self._tools.console.say(warning)
        if self._announced:
            why = verdict.failure.headline() if verdict.failure else verdict.why
            self._tools.console.say(f"algorun: {self._announced} was not started: {why}")
        if self._attempt is not None:
            self._attempt.leave()

    def explained(self, failure: Failure) -> Failure:
        """The failure with what this machine and the user's script say of it, without the job's secrets."""
        from algorun.outcome import redaction  # only a failure needs it

        if self._attempt is None:
            failure = explained(failure, None, self._config.paths.written)
        else:
            user_text = report.user_failure_text(self._config.paths)
            failure = replace(self._attempt.explain(failure), user_text=user_text)
        return redaction.failure(failure, self._config)

    def _public(self, text: str) -> str:
        """A text of the user's program, without the job's secrets."""
        if not text:
            return ""
        from algorun.outcome import redaction

        return redaction.text(text, self._config)

    def close(self) -> None:
        """Closes all files of the attempt."""
        if self._attempt is not None:
            self._attempt.close()
