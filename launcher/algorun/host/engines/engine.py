"""What this host does for the job's engine in one attempt. Each engine is one object; registry.py makes it.

The supervisor makes the object before the hosts meet, and the attempt takes it over.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence

from algorun.common.errors import UserError, exit_code
from algorun.control.failures.failure import Failure, listed
from algorun.control.wire.messages import DaemonEnded, Go, NodeAlive, Ready, StartDaemon
from algorun.host.output.logs import RankLog
from algorun.host.output.pipes import Pipes
from algorun.host.processes.owner import kill_sessions
from algorun.host.ranks.rank_port import Fields, Peer
from algorun.host.ranks.ranks import RankRules, Ranks
from algorun.host.tools import Tools
from algorun.job.config import JobConfig
from algorun.job.engine import Engine
from algorun.job.settings import START_S
from algorun.machine.probe import Machine
from algorun.plan.plan import Plan

END_WORD_S = 0.5  # the end of an engine's process counts only if no rank has explained it by then


class EngineAtWork:
    """The engine `native`: this host starts its ranks itself, and no process of an engine runs. Others derive from it.

    In order: `needs` and `ready` before the hosts have met, `before_gate` while the leader waits for them, `met`; `start` with
    the attempt's plan; `hush` once the attempt is over, `leave` at the end of the job, `close`.
    """

    has_nodes = False  # a process of the engine works on a host without ranks, too

    def __init__(self, tools: Tools, config: JobConfig) -> None:
        self._tools, self._config = tools, config
        self._host = config.resources.current_host
        self._pipes = Pipes(tools.loop, tools.console)
        self._plan: Plan | None = None
        self._ranks: Ranks | None = None
        self._log: RankLog | None = None
        self._starter = 0
        self._late_at = math.inf  # the end of its time to start all ranks of this host
        self._over = False

    @property
    def name(self) -> Engine:
        return self._config.launch.engine.value

    # -- before the hosts have met -----------------------------------------------------------------------------------

    def needs(self, machine: Machine, python: str) -> Machine:
        """The machine with what this engine needs of it. Raises UserError where that is missing."""
        return machine

    def ready(self, ready: Ready, address: str) -> Ready:
        """With what the other hosts need to know; `address` is this host's own."""
        return ready

    def before_gate(self, ready: Ready, plan: Callable[[Go], Plan]) -> None:
        """On the leader of a job's first attempt: starts what needs nothing of the others. Raises UserError."""

    def met(self, go: Go) -> None:
        """All hosts have met: `go` is of the attempt that follows."""

    # -- the attempt -------------------------------------------------------------------------------------------------

    def start(self, plan: Plan, ranks: Ranks) -> None:
        """Starts the ranks, or what starts them. Raises UserError where a program cannot start."""
        self._plan, self._ranks = plan, ranks
        ranks.start()

    def rules(self, plan: Plan) -> RankRules:
        """What this engine changes about ranks."""
        return RankRules()

    def heard(self, message: StartDaemon | DaemonEnded | NodeAlive) -> None:
        """What other hosts say to the engine here. It may arrive before `start`."""

    def asked(self, peer: Peer, message: Fields) -> None:
        """A process that the engine has started asks for another one."""

    def signal(self, number: int) -> None:
        """The ranks get a signal."""

    def refuse(self) -> None:
        """The job stops before the ranks of this host have started."""

    def child_ended(self, pid: int, returncode: int) -> bool:
        """A child of this process has ended; False if it was none of the engine's."""
        if not self._starter or pid != self._starter:
            return False
        self._starter = 0
        self._starter_ended(returncode)
        return True

    def _starter_ended(self, returncode: int) -> None:
        word = f"{self.name} ended with {exit_code(returncode)} before its ranks"
        self._tools.loop.after(END_WORD_S, lambda: self.broken(word))

    def broken(self, problem: str | UserError) -> None:
        """The engine has failed, or a program cannot start: that is a failure of this host."""
        if self._over:
            return
        words = self.last_words()
        if isinstance(problem, UserError):
            self._tools.broken(Failure.of(problem, self._host))
        else:
            self._tools.broken(Failure("engine", self._host, 1, problem, traceback=words))

    # -- what is known -----------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """True while one of its processes runs."""
        return bool(self._starter)

    @property
    def tail(self) -> str:
        """The last lines that its processes wrote to stderr, as far as they have been read."""
        return self._log.tail if self._log else ""

    @property
    def node(self) -> int:
        """The process of its node on this host, whose workers belong to no rank; 0 without one."""
        return 0

    def last_words(self) -> str:
        """The last lines that its processes have written to stderr."""
        self._pipes.drain()
        return self.tail

    def overdue(self, now: float) -> str:
        """Says once what the engine has not started on this host in its time; "" where nothing is missing."""
        waits = self._not_started() if now >= self._late_at else ""
        if not waits:
            return ""
        self._late_at = math.inf
        why = self._why_not_started()
        limit_s = self._config.limits.start_s
        return f"{self.name} has not started {waits} within {limit_s:g} s ({START_S.name}){f'; {why}' if why else ''}"

    def _has_time(self) -> None:
        """From now on its time to start all ranks of this host runs."""
        self._late_at = self._tools.loop.now() + self._config.limits.start_s

    def _not_started(self) -> str:
        waits = self._ranks.not_started if self._ranks is not None else []
        return f"{'rank' if len(waits) == 1 else 'ranks'} {listed([str(rank) for rank in waits])}" if waits else ""

    def _why_not_started(self) -> str:
        """What its ranks on this host wait for, as far as the engine knows it."""
        return ""

    # -- the end -----------------------------------------------------------------------------------------------------

    def hush(self) -> None:
        """From now on its output goes into its log file only, such as torchrun's lines about ranks that leave."""
        if self._log:
            self._log.aside = True

    def leave(self, *, well: bool) -> None:
        """The job is over, and has ended well or not: its processes may go."""
        self.hush()

    def keep_logs(self) -> None:
        """Keeps the engine's own log files of a failed attempt."""

    def close(self) -> None:
        """Reads what is left, and closes all files."""
        self._over = True
        self._pipes.close()

    # -- its processes -----------------------------------------------------------------------------------------------

    def _run(self, argv: Sequence[str], *, what: str, cwd: str = "/", extra: Mapping[str, str]) -> int:
        """Starts a process of the engine with `extra` variables; returns its pid. Raises UserError."""
        if self._log is None:
            name = f"{self.name}-{self._host}.log"
            self._log = RankLog(f"{self.name} {self._host}", name, self._tools.logs, self._tools.console, self._read)
        out = self._pipes.into(self._log, 2)
        try:
            return self._tools.owner.start(argv, {**os.environ, **extra}, cwd, out, out, what=what)
        finally:
            os.close(out)

    def _read(self, lines: bytes) -> bytes:
        """Reads what its processes print: whole lines, which it may change."""
        return lines

    def _kill_starter(self) -> None:
        if self._starter:
            kill_sessions([self._starter])
