"""Runs the attempts of this host, one after the other: plans them, starts them, watches them, clears them away."""

from __future__ import annotations

import functools
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import replace
from algorun.control.actions import Action
from algorun.control.failure import Failure, Raised
from algorun.control.member import Member, State
from algorun.control.messages import DaemonEnded, Go, Message, NodeAlive, Ready, StacksSent, StartDaemon, Verdict
from algorun.control.nodes import Nodes
from algorun.job.config import JobConfig
from algorun.outcome import report
from algorun.plan import render
from algorun.plan.cluster import Cluster
from algorun.plan.plan import Plan
from algorun.timing.clock import RankMoments
from algorun.timing.host_figures import HostFigures

from . import planning
from .attempt import ENGINE_WORD_S, Attempt
from .rank_port import Fields, Peer
from .readiness import Readiness
from .tools import Tools

if TYPE_CHECKING:
    from .early_head import EarlyHead

DRAIN_POLL_S = 0.05  # between two looks at what stopped shells have left


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
        self._head: EarlyHead | None = None  # on the leader of such an engine, until the first attempt takes it over
        self._announced = ""  # the next attempt as the log has announced it, until it starts
        self._nodes = Nodes((), 0)  # of the attempt, on the leader of an engine with a driver
        self._early: list[StartDaemon] = []  # daemons that mpirun has asked for before this host started its attempt

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
        return self._attempt is not None and not self._attempt.ranks.all_ended

    @property
    def engine_runs(self) -> bool:
        """True while a process of the engine has not ended."""
        return self._attempt is not None and self._attempt.engine.busy

    @property
    def moments(self) -> list[RankMoments]:
        """What the ranks' records say of this attempt, [] before it starts."""
        return self._attempt.moments() if self._attempt is not None else []

    # -- the start -------------------------------------------------------------------------------------------------

    def go(self, go: Go) -> None:
        """All hosts have met: every host makes the same plan."""
        self._early.clear()
        self._nodes = Nodes(self._config.resources.hosts, go.attempt)
        try:
            self.cluster, self._plan = self._planned(go)
        except UserError as error:  # every host finds it, and the hub makes all name one of them
            self._cannot_start(error)
            return
        ranks = {rank.local_rank: rank.rank for rank in self._plan.host(self._host).ranks}
        bundled = self._config.entry.kind == "bundled"
        self._supervisor.do(self._member.go(self._now, go, ranks, bundled=bundled, code=self._plan.cwd))

    def _planned(self, go: Go) -> tuple[Cluster, Plan]:
        return planning.planned(self._config, self._readiness.machine, self._readiness.programs, go)

    def start_head(self, ready: Ready) -> None:
        """Starts the head of an engine with a driver while this host, the leader, waits for others at the gate. In a
        restart all hosts get ready at about the same time. Raises UserError where the program cannot start."""
        if self._plan is None:
            from .early_head import EarlyHead  # only this engine needs it

            _, early = self._planned(planning.before_the_gate(self._config.resources.hosts, ready))
            self._head = EarlyHead(self._tools, early, self.broken)

    def start(self) -> None:
        """Starts the ranks, once the entrypoint's options are known to be right."""
        assert self._plan is not None
        launch = functools.partial(self._launch, self._plan)
        self._readiness.when_options_are_right(self._plan.world_size, launch)

    def _launch(self, planned: Plan) -> None:
        """Starts the ranks of a plan, unless the job has ended or restarted in the meantime."""
        if planned is not self._plan or self._member.state is not State.RUN:
            return
        if self._member.stopping:  # before any rank was there to be told
            self._supervisor.do(self._member.all_ranks_gone(self._now))
        else:
            self._begin(planned)
        early, self._early = self._early, []
        for order in early:
            self.daemon(order)

    def _begin(self, planned: Plan) -> None:
        self._announced = ""
        if self._leads and not planned.attempt:
            self._tools.console.say(render.rank_map(planned))
        try:
            head, self._head = self._head, None
            self._attempt = Attempt(self._tools, planned, self._host, self._config.paths, self, head)
            self._attempt.start(self._config.limits.start_s)
        except UserError as error:
            self._cannot_start(error)
        self._tools.owner.adopt()
        self._look_whether_all_alive()
        self._look_whether_done()  # a host without ranks has nothing to wait for

    def _cannot_start(self, error: UserError) -> None:
        self.broken(Failure.of(error, self._host))

    # -- events ----------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return self._tools.loop.now()

    def rank_raised(self, raised: Raised) -> None:
        """An exception has reached the top in a rank, or in a process below one."""
        if self._attempt is None:
            return
        local_rank, is_rank = self._attempt.place(raised.rank, raised.pid)
        if self._plan is not None and raised.type.startswith("ray."):
            from algorun.control import ray_errors  # only this exception needs it

            raised = ray_errors.plain(raised, self._plan.hosts_by_address)
        if local_rank is not None:
            printed = self._attempt.ranks.printed(local_rank) if is_rank else ""
            actions = self._member.rank_raised(self._now, local_rank, raised, is_rank=is_rank, printed=printed)
            self._supervisor.do(actions)

    def child_ended(self, pid: int, returncode: int) -> None:
        """A child of this process has ended, a rank or an engine's process."""
        if self._attempt is not None:
            self._attempt.child_ended(pid, returncode)
        elif self._head is not None:
            self._head.child_ended(pid, returncode)

    def peer_message(self, peer: Peer, message: Fields | None) -> None:
        """A message of a process that the engine has started; None is its end."""
        if self._attempt is not None:
            self._attempt.peer_message(peer, message)
            self._look_whether_done()

    def daemon(self, message: StartDaemon | DaemonEnded) -> None:
        """mpirun asks this host for its daemon, or a daemon elsewhere has ended.

        mpirun may ask while this host still checks the entrypoint's options: the leader has checked them already.
        """
        if self._attempt is not None:
            self._attempt.daemon(message)
        elif isinstance(message, StartDaemon) and not self._member.stopping:
            self._early.append(message)
        elif isinstance(message, StartDaemon):
            self.send(DaemonEnded(message.id, 1))

    def node_alive(self, message: NodeAlive) -> None:
        """A node of the engine's cluster is alive."""
        self._nodes.heard(message)
        self._look_whether_all_alive()

    def _look_whether_all_alive(self) -> None:
        if self._attempt is None:
            return
        self._attempt.missing = self._nodes.missing
        if self._nodes.all_alive and self._member.state is State.RUN:
            try:
                self._attempt.start_driver()
            except UserError as error:
                self._cannot_start(error)

    def rank_exited(self, local_rank: int, returncode: int, stderr_tail: str, printed: str) -> None:
        """A rank has ended; -n for signal n. `printed`: the end of both its streams."""
        self._supervisor.drain()
        step = self._attempt.step(local_rank) if self._attempt is not None else 0
        self._supervisor.do(self._member.rank_exited(self._now, local_rank, returncode, stderr_tail, step, printed))
        self._look_whether_done()

    def _look_whether_done(self) -> None:
        """Tells the hub once all ranks of this host have ended; in a stop, once their sessions are empty too."""
        if self._attempt is None or not self._attempt.ranks.all_ended:
            return
        if self._member.state in (State.LEAVE, State.BYE):
            self._supervisor.leave()
        elif self._member.stopping and not self._attempt.ranks.quiet:
            self._tools.loop.after(DRAIN_POLL_S, self._look_whether_done)
        elif self._member.awaits_ranks:
            self._attempt.tell_last_times()
            note = self.public(report.figures(self._config.paths.summary)) if self._leads else ""
            self._supervisor.do(self._member.all_ranks_gone(self._now, note, self._attempt.ranks.cut_off))

    def broken(self, failure: Failure) -> None:
        """The engine or the start of a rank has failed."""
        self._supervisor.do(self._member.broken(self._now, failure))

    def engine_process_ended(self) -> None:
        """This host may leave once the engine's processes have ended. In a stop no more ranks follow."""
        self._supervisor.leave()
        if not self.engine_runs:
            self._tools.loop.after(ENGINE_WORD_S, self._give_up_in_stop)

    def _give_up_in_stop(self) -> None:
        if self._attempt is not None and self._member.stopping:
            self._attempt.ranks.give_up()
            self._look_whether_done()

    def send(self, message: Message) -> None:
        """Sends a message to the hub."""
        self._supervisor.send(message)

    # -- ranks that hang -------------------------------------------------------------------------------------------

    def look_after_ranks(self, samples: Sequence[HostFigures]) -> None:
        """Looks, at every heartbeat of the hub, whether each rank has started, and still makes steps or at least prints.

        `samples`: this host's figures since the last call.
        """
        if self._attempt is None or self._member.state is not State.RUN:
            return
        self._attempt.ranks.show_unfinished(self._now)
        self._attempt.expect_ranks(self._now)
        self._attempt.look_at_times(self._now, self._config.limits.times_s, samples)
        limit_s = self._config.limits.hang_s
        self._attempt.stacks.look(self._now, limit_s)
        idle_s = self._attempt.stalled(self._now, limit_s)
        if idle_s:
            self._supervisor.do(self._member.hangs(self._now, idle_s))
        self._supervisor.do(self._member.ranks_silent(self._attempt.silent(self._now, limit_s), limit_s))

    def ask_for_stacks(self) -> None:
        """The hub gets the stacks of all ranks of this host, a moment after they were asked."""
        if self._attempt is not None:
            self._attempt.stacks.ask()
        else:
            self.send(StacksSent())

    # -- the end ---------------------------------------------------------------------------------------------------

    def signal_ranks(self, number: int) -> None:
        """A signal to all ranks of this host."""
        if self._attempt is not None:
            self._attempt.signal(number)
            if number == signal.SIGKILL or self._attempt.ranks.all_ended:
                self._look_whether_done()

    def restart(self, attempt: int, cause: Failure) -> None:
        """Ends the ranks of this attempt. After that this host gets ready once more."""
        actions = self._member.restart(self._now, attempt)
        if not actions:
            return
        report.write_attempt(self._config.paths, attempt, cause)
        if self._attempt is not None:
            self._attempt.keep_last_times()
            self._attempt.engine.hush()
        if self._leads:
            self._announced = f"attempt {attempt + 1}/{cause.attempts}"
            self._tools.console.say(f"algorun: {cause.headline()}\nalgorun: {self._announced} follows")
        self._supervisor.do(actions)
        self._look_whether_cleared()

    def _look_whether_cleared(self) -> None:
        """Waits until nothing of the failed attempt lives, then gets ready for the next one."""
        if self._member.state is not State.RESTART:
            return
        owner = self._tools.owner
        owner.reap()
        if self.ranks_run or owner.kill_left():
            self._tools.loop.after(DRAIN_POLL_S, self._look_whether_cleared)
            return
        if self._attempt is not None:
            self._attempt.keep_logs()
            self._keep_trace()  # not before the ranks' end: it may take a second
            self._attempt.clear_away()
            self._attempt = None
        report.forget_user_failure_text(self._config.paths)
        self._member.cleared(self._now)
        self._supervisor.do([])
        self._readiness.ready()

    def conclude(self, verdict: Verdict) -> None:
        """The job is over: writes the outcome down, lets the engine go."""
        own = self.public(report.user_failure_text(self._config.paths)) if self._attempt is not None else ""
        warning = report.write(self._config.paths, verdict, own)
        if warning:
            self._tools.console.say(warning)
        if self._announced:
            why = verdict.failure.headline() if verdict.failure else verdict.why
            self._tools.console.say(f"algorun: {self._announced} was not started: {why}")
        if self._attempt is not None:
            self._say_links()
            self._attempt.keep_last_times()
            if verdict.failure is not None:
                self._attempt.keep_logs()
            self._attempt.leave(well=verdict.kind == "ok")
        elif self._head is not None:
            self._head.keep_logs()

    def _say_links(self) -> None:
        from algorun.outcome import links  # the end is near: nobody waits for an import any more

        for note in links.notes(self._config.paths):
            self._tools.console.say(f"algorun: warning: {self.public(note)}")

    def explained(self, failure: Failure) -> Failure:
        """The failure with what this machine and the user's script say of it, without the job's secrets."""
        from algorun.outcome import redaction  # only a failure needs it

        if self._attempt is None:
            from .explain import explained

            failure = explained(failure, None, self._config.paths.written)
        else:
            user_text = report.user_failure_text(self._config.paths)
            failure = replace(self._attempt.explain(failure), user_text=user_text)
        return redaction.failure(failure, self._config)

    def public(self, text: str) -> str:
        """A text of the user's program, without the job's secrets."""
        if not text:
            return ""
        from algorun.outcome import redaction

        return redaction.text(text, self._config)

    def _keep_trace(self, *, final: bool = False) -> None:
        if self._tools.trace is not None:
            self._tools.trace.keep(final=final)

    def close(self) -> None:
        """Writes what is left to write now that no host waits for this one, and closes all files of the attempt."""
        if self._attempt is not None:
            self._keep_trace(final=True)
            self._attempt.close()
        if self._head is not None:
            self._head.close()
