"""The supervisor: one host's main process.

It turns the world's events into those of the state machines (control/) and does what they say; it decides nothing.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from . import agreement, cluster, plan, preflight, probe, render, report
from . import config as configs
from .cluster import Cluster
from .config import JobConfig
from .control import messages
from .control.failure import Failure, Raised
from .control.hub import Hub
from .control.member import Action, Conclude, Member, Signal, Start, State, ToHub, Warn
from .control.messages import Hello, Message, Ready, Verdict
from .engine_processes import EngineProcesses
from .engines.base import Programs
from .errors import ExitCode, UserError, exit_code
from .logs import Console, RankLog, without_secrets
from .loop import Loop, Timer
from .plan import Meeting, Plan
from .preparation import Preparation, Prepared
from .probe import Machine
from .process import Owner
from .rank_port import Peer, RankPort
from .ranks import Pipe, Ranks
from .values import Sourced

ENGINE_WORD_S = 0.5  # an engine's own end is news only if no rank explains it by then
DRAIN_POLL_S = 0.05  # between two looks at what stopped shells have left
STOP_SIGNALS = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "SIGINT", signal.SIGHUP: "SIGHUP"}


class Supervisor:
    """One host's main process."""

    def __init__(self, config: JobConfig, machine: Machine, programs: Programs, console: Console) -> None:
        self.config, self._machine, self._programs, self._console = config, machine, programs, console
        self._host = config.resources.current_host
        self._leader = config.resources.hosts[0]
        self._loop = Loop()
        self.owner = Owner(self._child_ended)
        now = self._loop.now()
        bundled = config.entry.kind == "bundled"
        self._member = Member(
            now, self._host, self._leader, config.limits, bundled=bundled, explain=self._explained
        )  # fmt: skip
        self._before: Any = None  # what the kernel had counted when the ranks began
        self._timer: Timer | None = None
        self._shell: Any = None  # HubShell on the leader
        self._link: Any = None  # HubLink on the others
        self._port: RankPort | None = None
        self._ranks: Ranks | None = None
        self._engine: EngineProcesses  # made with the run folder
        self._cluster: Cluster | None = None
        self._plan: Plan | None = None
        self._preparation: Preparation | None = None
        self._pipes: list[Pipe] = []  # of the engine and of the preparation
        self._interrupts = 0
        self._done_sent = False
        self._bye_sent = False

    # -- the run ---------------------------------------------------------------------------------------------------

    def run(self, error: str = "") -> tuple[Verdict, int]:
        """Runs the job to its end on this host; returns the verdict and the world size (0 if the hosts never met).

        `error` is a configuration error of this host that the other hosts must hear.
        """
        report.clear(self.config.paths)
        self.owner.guard()
        handlers: dict[int, Callable[[], None]] = {signal.SIGCHLD: self.owner.reap}
        for number, name in STOP_SIGNALS.items():
            if signal.getsignal(number) is signal.SIG_IGN:  # nohup
                continue
            handlers[number] = functools.partial(self._asked_to_stop, name)
        with self._loop.signals(handlers):
            try:
                self._port = RankPort(self._loop, self._rank_raised, self._peer_message)
                self.owner.clean_up(self._port.folder)
                pipe = functools.partial(self._into, stream=2)
                self._engine = EngineProcesses(self.owner, self.run_dir, self._engine_log, pipe, self.send)
                self._join(error)
                if not error:
                    self._prepare()
                self._arm()
                self._loop.run()
            finally:
                self._close()
        verdict = self._member.verdict
        assert verdict is not None
        return verdict, self._cluster.world_size if self._cluster else 0

    def _join(self, error: str) -> None:
        """Meets the other hosts: as the hub on the leader, over TCP elsewhere."""
        hello = Hello(self._host, agreement.at_first(self.config, self._machine), error)
        hosts, limits = self.config.resources.hosts, self.config.limits
        if self._host != self._leader:
            self._join_over_tcp(hello)
            return
        from .control.hub_shell import HubShell

        hub = Hub(self._loop.now(), hosts, limits)
        secret = "ALGORUN_TOKEN" in self.config.environ
        self._shell = HubShell(
            self._loop, hub, self.config.token, secret, self.config.addresses, limits.heartbeat_timeout_s
        )
        self._shell.on_finished = self._leave
        if len(hosts) > 1:
            self._shell.listen(self._own_address(), self.config.control_port)
        self._member.joined(self._loop.now())
        self._shell.join(hello, self._received)

    def _own_address(self) -> str:
        """This host's address in the job's network."""
        if len(self.config.resources.hosts) == 1:
            return "127.0.0.1"
        from .control.addresses import own_address

        return own_address(self._host, self.config.addresses, cluster.interface(self.config, self._machine).value)

    def _join_over_tcp(self, hello: Hello) -> None:
        from .control.link import HubLink

        config = self.config
        self._link = HubLink(
            self._loop,
            (config.addresses.get(self._leader, self._leader), config.control_port),
            config.addresses.get(self._host, ""),
            config.token,
            hello,
            self._received,
            lambda reason: self._do(self._member.hub_lost(self._loop.now(), reason)),
            config.limits.heartbeat_timeout_s,
        )

    # -- getting ready ---------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Fetches the user's code and installs what it requires, where the job needs that."""
        setup = self.config.setup
        if setup is None:
            self._ready("")
            return
        log = self._log(f"setup {self._host}", f"setup-{self._host}.log", without_secrets)
        self._preparation = Preparation(self.owner, log, functools.partial(self._into, log), self.run_dir)
        try:
            self._preparation.start(setup, self._programs.python)
        except UserError as error:
            self._cannot_start(Failure("setup", self._host, error.code, str(error)))
            return
        self.owner.adopt()
        self._do(self._member.preparing(self._loop.now()))

    def _prepared(self, found: Prepared) -> None:
        """The preparation is over: ready, or the reason why not, with the last lines of what it printed."""
        self._do(self._member.prepared(self._loop.now()))
        if found.error:
            self._cannot_start(Failure("setup", self._host, found.code, found.error, traceback=found.tail))
        else:
            self._ready(found.source)

    def _cannot_start(self, failure: Failure) -> None:
        self._do(self._member.broken(self._loop.now(), failure))

    def _ready(self, source: str) -> None:
        """This host could start: the hub hears what it carries."""
        try:
            if self.config.setup is not None:
                self.config = configs.prepared(self.config)
                self._member.bundled = self.config.entry.kind == "bundled"
            slots = cluster.own_slots(self.config, self._machine)
            if self._preflight(slots):
                return
            ready = Ready(slots.value, agreement.at_the_start(self.config, source))
            if self._host == plan.first_host(self.config):
                from .control.addresses import free_ports

                address = plan.offline(self.config).master_addr.value
                port, engine_port = free_ports(self._own_address(), 2)
                ready = replace(ready, master_addr=address, master_port=port, engine_port=engine_port)
        except UserError as error:
            self._cannot_start(Failure("configuration", self._host, error.code, str(error)))
        else:
            self.send(ready.message())

    def _preflight(self, slots: Sourced[int]) -> bool:
        """True where this machine cannot run the job, which is then every host's failure."""
        paths, hosts = self.config.paths, len(self.config.resources.hosts)
        written = [probe.folder(str(path)) for path in (paths.model, paths.output)] if paths.base.is_dir() else []
        kept = probe.folder(str(paths.checkpoints)) if written else None
        found = preflight.examine(
            self._machine, slots, written, kept, hosts=hosts, engine=self.config.engine.value
        )  # fmt: skip
        self._do([Warn(str(each)) for each in found if each.state == "warn"])
        failed = " | ".join(str(each) for each in found if each.state == "fail")
        if failed:
            self._cannot_start(Failure("preflight", self._host, ExitCode.PREFLIGHT, failed))
        return bool(failed)

    # -- events ----------------------------------------------------------------------------------------------------

    def _received(self, message: Message) -> None:
        """A message of the hub."""
        member, now = self._member, self._loop.now()
        member.heard(now)
        match message["type"]:
            case "go":
                self._go(messages.parse_go(message))
            case "stop":
                self._do(member.stop(now, str(message.get("why", ""))))
            case "end":
                self._do(member.end(now, messages.parse_verdict(message)))
            case "refuse":
                self._do(member.refused(now, str(message.get("why", ""))))
            case "daemon":
                trouble = self._engine.start_daemon(message, expected=self.config.engine.value == "mpirun")
                if trouble:
                    self.broken(trouble)
            case "daemon_exit":
                self._engine.daemon_ended(message)
            case "nonce" | "heartbeat":
                self._arm()
            case other:
                raise ValueError(f"type {other!r}")

    def _go(self, go: messages.Go) -> None:
        slots = {host: Sourced(count, f"{host} at the gate") for host, count in go.slots.items()}
        self._cluster = cluster.resolve(self.config.resources.hosts, slots, self.config.outside)
        port, engine_port = (Sourced(number, "free on the leader") for number in (go.master_port, go.engine_port))
        meeting = Meeting(Sourced(go.master_addr, "leader"), port, engine_port, go.attempt)
        try:
            self._plan = plan.make(self.config, self._cluster, self._machine, self._programs, meeting)
        except UserError as error:  # the same on every host, but all are to name the same one
            self._cannot_start(Failure("configuration", self._host, error.code, str(error)))
            return
        ranks = {rank.local_rank: rank.rank for rank in self._plan.host(self._host).ranks}
        self._do(self._member.go(self._loop.now(), go, ranks))

    def _asked_to_stop(self, name: str) -> None:
        self._do(self._member.stop_asked(self._loop.now(), f"{name} on {self._host}"))
        self._interrupts += name == "SIGINT"
        if self._interrupts > 1:
            self._do(self._member.hurry(self._loop.now()))

    def _rank_raised(self, raised: Raised) -> None:
        local_rank = self._ranks.local_rank_of(raised.rank) if self._ranks else None
        if self._ranks is not None and local_rank is not None:
            is_rank = self._ranks.is_rank(local_rank, raised.pid)
            self._do(self._member.rank_raised(self._loop.now(), local_rank, raised, is_rank=is_rank))

    def _rank_exited(self, local_rank: int, returncode: int, tail: str) -> None:
        if self._port is not None:
            self._port.drain()
        self._do(self._member.rank_exited(self._loop.now(), local_rank, returncode, tail))
        self._look_whether_done()

    def _look_whether_done(self) -> None:
        """All ranks of this host have ended: the hub hears it, and in a stop only once their sessions are empty."""
        if self._ranks is None or not self._ranks.all_ended:
            return
        if self._member.state is State.LEAVE:
            self._leave()
        elif self._member.stopping and not self._ranks.quiet:
            self._loop.after(DRAIN_POLL_S, self._look_whether_done)
        elif not self._done_sent:
            self._done_sent = True
            note = report.figures(self.config.paths.summary) if self._host == self._leader else ""
            self._do(self._member.all_ranks_gone(self._loop.now(), note))

    def _child_ended(self, pid: int, returncode: int) -> None:
        if self._preparation is not None and pid == self._preparation.pid:
            self._drain_pipes()
            self._prepared(self._preparation.ended(returncode))
            return
        if self._ranks is not None and self._ranks.exited(pid, returncode):
            return
        if self._engine.is_daemon(pid, returncode):
            self._leave()
        elif self._engine.is_starter(pid):
            if self._member.state is State.LEAVE:
                self._leave()
            else:
                engine = self.config.engine.value
                word = f"{engine} ended with {exit_code(returncode)} before its ranks"
                self._loop.after(ENGINE_WORD_S, lambda: self.broken(word))

    def _peer_message(self, peer: Peer, message: dict[str, Any] | None) -> None:
        if message is not None and "daemon" in message:
            self._engine.daemon_wanted(peer, message)
        elif self._ranks is not None:
            self._ranks.peer_message(peer, message)
            self._look_whether_done()

    def broken(self, text: str) -> None:
        """The engine or the start of a rank has failed."""
        self._drain_pipes()
        failure = Failure("engine", self._host, 1, text, traceback=self._engine.tail)
        self._do(self._member.broken(self._loop.now(), failure))

    def _explained(self, failure: Failure) -> Failure:
        """The failure with what this machine knows of it."""
        from . import evidence, hints  # only a failure needs them

        return hints.explain(failure, evidence.look(self._before, self.config.paths.written))

    # -- actions ---------------------------------------------------------------------------------------------------

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case ToHub(message):
                    self.send(message)
                case Start():
                    self._start()
                case Signal(number):
                    if self._preparation is not None:
                        self._preparation.kill()
                    if self._ranks is not None:
                        self._ranks.signal(number)
                    if number == signal.SIGKILL and self._member.state is State.LEAVE:
                        self._leave(forced=True)
                case Warn(text):
                    self._console.say(f"algorun: warning: {text}")
                case Conclude(verdict):
                    self._conclude(verdict)
        self._arm()

    def send(self, message: Message) -> None:
        """To the hub, wherever it is."""
        if self._shell is not None:
            self._loop.post(functools.partial(self._shell.local, message))
        elif self._link is not None:
            self._link.send(message)

    def _start(self) -> None:
        assert self._plan is not None
        if self._host == self._leader:
            self._console.say(render.rank_map(self._plan))
        host = self._plan.host(self._host)
        self._engine.environ = self._plan.starter_env
        try:
            self._ranks = Ranks(
                self._loop, self.owner, self._console, self.config.paths, self._plan, host, self.run_dir,
                self._programs, self._rank_exited, self.broken,
            )  # fmt: skip
            if host.starter:
                self._engine.start(host.starter, what=self.config.engine.value)
            if self.config.engine.value == "native" or not host.joined:
                self._ranks.start()
        except UserError as error:
            self._cannot_start(Failure("configuration", self._host, error.code, str(error)))
        self.owner.adopt()
        from . import evidence  # the ranks start meanwhile

        self._before = evidence.snapshot()

    def _conclude(self, verdict: Verdict) -> None:
        warning = report.write(self.config.paths, verdict)
        if warning:
            self._console.say(warning)
        if self._ranks is not None:
            self._ranks.leave(0)
        self._loop.post(self._leave)

    def _leave(self, forced: bool = False) -> None:
        """Leaves once nothing is left to wait for: own ranks, the engine's orderly end, the other hosts."""
        if self._member.state is not State.LEAVE:
            return
        verdict = self._member.verdict
        orderly = verdict is not None and verdict.kind == "ok"
        ranks_here = self._ranks is not None and not self._ranks.all_ended
        if not forced and not self._bye_sent and (ranks_here or (orderly and self._engine.busy)):
            return
        if not self._bye_sent:
            self._bye_sent = True
            self.owner.close()
            self.send({"type": "bye"})
        if self._shell is None or self._shell.finished:
            self._member.left()
            self._loop.stop()

    def _close(self) -> None:
        for closable in (self._ranks, self._link, self._shell, self.owner, self._port):
            if closable is not None:
                closable.close()
        for pipe in self._pipes:
            pipe.close()
        self._loop.close()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.at(self._member.deadline, lambda: self._do(self._member.tick(self._loop.now())))

    # -- folders and logs ------------------------------------------------------------------------------------------

    @property
    def run_dir(self) -> str:
        assert self._port is not None
        return self._port.folder

    def _engine_log(self) -> RankLog:
        name = self.config.engine.value
        return self._log(f"{name} {self._host}", f"{name}-{self._host}.log")

    def _log(self, label: str, name: str, clean: Callable[[bytes], bytes] = bytes) -> RankLog:
        return RankLog(label, name, self.config.paths.output_data / "logs", self._console, clean)

    def _into(self, log: RankLog, stream: int) -> int:
        """A pipe into a log; returns its writing end."""
        reader, writer = os.pipe()
        self._pipes.append(Pipe(self._loop, reader, self._console, functools.partial(log.feed, stream)))
        return writer

    def _drain_pipes(self) -> None:
        """The last words of the engine or the preparation."""
        for pipe in self._pipes:
            pipe.drain()
