"""One try at running the job on this host: its ranks, the processes of their engine, and what is known of them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from algorun.common.errors import ExitCode, UserError, exit_code
from algorun.common.fast_dataclasses import replace
from algorun.control.failure import Failure
from algorun.control.gate import listed
from algorun.control.messages import DaemonEnded, Message, NodeAlive, StartDaemon
from algorun.job.paths import Paths
from algorun.job.settings import START_S
from algorun.machine.openmpi import ABORTS
from algorun.plan.plan import Plan
from algorun.timing.clock import RankMoments
from algorun.timing.host_figures import HostFigures

from .engine_processes import EngineProcesses, EngineUser, without_harmless
from .load_reports import LoadReports
from .output import Pipes
from .rank_port import Fields, Peer
from .rank_stacks import RankStacks
from .rank_times import Reports, ReportTo
from .ranks import Ranks
from .step_counter import StepBoard, stalled
from .tools import Tools

if TYPE_CHECKING:
    from algorun.machine.failure_snapshot import Snapshot

    from .early_head import EarlyHead
    from .memory_watch import MemoryWatch
    from .ray_node import RayNode

ABORT_WORD_S = 0.2  # for the rest of mpirun's text
ENGINE_WORD_S = 0.5  # the end of an engine counts only if no rank has explained it by then


class Running(Protocol):
    """What an attempt needs of its runner."""

    def rank_exited(self, local_rank: int, returncode: int, stderr_tail: str, printed: str) -> None:
        """A rank has ended; -n for signal n. `printed`: the end of both its streams."""

    def broken(self, failure: Failure) -> None:
        """Something other than a rank has failed."""

    def engine_process_ended(self) -> None:
        """A process of the engine has ended."""

    def send(self, message: Message) -> None:
        """Sends a message to the hub."""

    def public(self, text: str) -> str:
        """A text of the user's program, without the job's secrets."""
        ...


class Attempt:
    """The `ranks` of this host, their `stacks`, and the processes of their `engine`."""

    def __init__(
        self, tools: Tools, plan: Plan, host: str, paths: Paths, runner: Running, head: EarlyHead | None = None
    ) -> None:
        self._tools, self._plan, self._host, self._folders = tools, plan, plan.host(host), paths.written
        self._runner = runner
        self._before: Snapshot | None = None
        self._over = False
        self._memory: MemoryWatch | None = None  # of an engine with a driver, once it runs
        self._start_s, self._late_at = 0.0, math.inf  # the engine's time to start all ranks of this host, and its end
        self._waits_for_nodes = plan.engine.value.has_driver
        self.missing: list[str] = []  # hosts without a node of the engine's cluster, as the leader knows them
        self._head = head  # runs already
        self._pipes = head.pipes if head is not None else Pipes(tools.loop, tools.console)
        self._board = StepBoard(tools.run_dir, len(self._host.ranks))
        self.ranks = Ranks(tools, plan, self._host, runner.rank_exited, self._broken)
        ranks = [rank.rank for rank in self._host.ranks]
        self.reports = Reports(self._board, ranks, plan.attempt, ReportTo(runner.send, tools.times))
        self.loads = LoadReports(self._board, len(ranks), plan.attempt, runner.send)
        self.stacks = RankStacks(tools, paths, host, self.ranks, self._board, runner.send)
        self._node: RayNode | None = head.node if head is not None else None
        if plan.engine.value.has_driver and head is None:
            from .ray_node import RayNode  # only this engine needs it

            self._node = RayNode(host, self._node_alive, self._fail)
        clean = self._node.read if self._node is not None else self._read_engine
        self._abort_told = False
        user = EngineUser(runner.send, clean)
        self.engine = head.engine if head is not None else EngineProcesses(tools, self._pipes, plan, host, user)

    def _read_engine(self, lines: bytes) -> bytes:
        """What the engine prints, without what means nothing. mpirun tells that it ends the ranks before it does: a rank that
        MPI has ended has no words of its own, and these are needed to find the cause."""
        if self._plan.engine.value.needs_openmpi and not self._abort_told and re.search(ABORTS, lines):
            self._abort_told = True
            self._tools.loop.after(ABORT_WORD_S, lambda: self._broken(f"{self._plan.engine.value} ends the ranks"))
        return without_harmless(lines)

    def _node_alive(self) -> None:
        self._runner.send(NodeAlive(self._plan.attempt))

    def start(self, start_s: float) -> None:
        """Starts the engine, or the ranks where the engine is ours. Raises UserError where a program cannot start.

        `start_s` is the engine's time to start the ranks.
        """
        if self._tools.trace is not None:
            self._tools.trace.begin(self._plan.attempt + 1, [rank.rank for rank in self._host.ranks])
        engine = self._plan.engine.value
        if engine.starts_ranks or engine.has_driver:
            self._start_s, self._late_at = start_s, self._tools.loop.now() + start_s
        if self._head is not None:
            self._head.node.report_to(self._node_alive, self._fail)
        elif self._host.starter:
            self.engine.start(self._host.starter, what=engine)
        if not (engine.starts_ranks or engine.has_driver) or not self._host.joined:
            self.ranks.start()
        self._tools.times.attempt(self._plan.attempt + 1, [rank.rank for rank in self._host.ranks])

        from algorun.machine import failure_snapshot  # while the ranks start

        self._before = failure_snapshot.snapshot()
        if engine.has_driver:
            from .memory_watch import MemoryWatch  # only this engine needs it

            self._memory = MemoryWatch(self._tools.loop, self._before, self._plan.attempt, self._runner.send)

    def start_driver(self) -> None:
        """All nodes of the engine's cluster are alive. Raises UserError where the program cannot start."""
        if self._waits_for_nodes:
            self._waits_for_nodes = False
            self.ranks.start()

    def signal(self, number: int) -> None:
        """A signal to all ranks of this host. A driver that has not started does not start any more."""
        self.ranks.signal(number)
        if self._waits_for_nodes:
            self._waits_for_nodes = False
            self.ranks.give_up()

    def place(self, rank: int, pid: int) -> tuple[int | None, bool]:
        """The local rank of a global one, None if it is not here; and whether this process is the rank itself."""
        local_rank = self.ranks.local_rank_of(rank)
        return local_rank, local_rank is not None and self.ranks.is_rank(local_rank, pid)

    # -- events ----------------------------------------------------------------------------------------------------

    def child_ended(self, pid: int, returncode: int) -> None:
        """A child of this process has ended, a rank or an engine's process."""
        if self.ranks.exited(pid, returncode):
            return
        if self.engine.is_starter(pid):
            if self._node is not None:
                self._pipes.drain()
                self._node.starter_ended(returncode, self.engine.tail)
                self._runner.engine_process_ended()
                return
            word = f"{self._plan.engine.value} ended with {exit_code(returncode)} before its ranks"
            self._tools.loop.after(ENGINE_WORD_S, lambda: self._broken(word))
        elif not self.engine.daemons.exited(pid, returncode):
            return
        self._runner.engine_process_ended()

    def peer_message(self, peer: Peer, message: Fields | None) -> None:
        """A message of a process that the engine has started."""
        if message is not None and "daemon" in message:
            self.engine.daemons.wanted(peer, message)
        else:
            self.ranks.peer_message(peer, message)

    def daemon(self, message: StartDaemon | DaemonEnded) -> None:
        """The hub passes on what mpirun asks this host for, or that it has ended elsewhere."""
        if isinstance(message, DaemonEnded):
            self.engine.daemons.ended(message)
        elif trouble := self.engine.daemons.start(message):
            self._broken(trouble)

    def _broken(self, trouble: str | UserError) -> None:
        if self._over:
            return
        self._pipes.drain()
        if isinstance(trouble, UserError):
            self._runner.broken(Failure.of(trouble, self._host.host))
        else:
            self._fail(Failure("engine", self._host.host, 1, trouble))

    def _fail(self, failure: Failure) -> None:
        """Something other than a rank has failed; what the engine's processes have printed explains it."""
        if not self._over:
            self._runner.broken(replace(failure, traceback=self.engine.tail))

    # -- what the ranks spend their time on ------------------------------------------------------------------------

    def look_at_times(self, now: float, every_s: float, samples: Sequence[HostFigures]) -> None:
        """Reports what the ranks and this host do, if all ranks run, and follows the trace of their steps."""
        if self.ranks.all_run:
            self.reports.look(now, every_s)
        only_node = not self._host.ranks  # of a driver's cluster, which loads this host as ranks would
        if self.ranks.all_run or only_node:
            self.loads.look(now, every_s, samples)
        if self._tools.trace is not None:
            self._tools.trace.look()

    def tell_last_times(self) -> None:
        """All ranks of this host have ended: the last that the hub hears of their times."""
        self.reports.tell_last()
        self.loads.tell_last()
        if self._tools.trace is not None:
            self._tools.trace.ask_last()

    def keep_last_times(self) -> None:
        """The attempt is over: writes what is known of its times into this host's file."""
        self.reports.keep_last()

    # -- the end ---------------------------------------------------------------------------------------------------

    def leave(self, *, well: bool) -> None:
        """The job is over, and has ended well or not: the engine's processes may go."""
        self.engine.hush()
        self.ranks.leave(0)
        if self._plan.engine.value.has_driver:
            from . import ray_logs  # only this engine needs it

            if well and self._host.ranks and not ray_logs.driver_connected(self.engine.folder):
                self._tools.console.say(f"algorun: warning: {ray_logs.NOT_CONNECTED}")
            self.engine.kill()

    def close(self) -> None:
        """Reads what is left, and closes all files."""
        self._over = True
        if self._memory is not None:
            self._memory.close()
        self.ranks.close()
        self._pipes.close()
        self._board.close()

    def keep_logs(self) -> None:
        """Keeps the engine's own log files: the attempt has failed."""
        if self._plan.engine.value.has_driver:
            from . import ray_logs  # only this failure needs it

            ray_logs.keep(self.engine.folder, self._tools.logs / ray_logs.kept_in(self._host.host, self._plan.attempt))

    def clear_away(self) -> None:
        """Removes its files: nothing of it lives any more, and another attempt follows in the same folders."""
        from . import stacks

        self.close()
        stacks.forget(self._tools.run_dir)

    # -- what is known ---------------------------------------------------------------------------------------------

    def step(self, local_rank: int) -> int:
        """The steps of optimizers that a rank has made, 0 where nobody counts."""
        return self._board.read(local_rank).count

    def moments(self) -> list[RankMoments]:
        """What the record of each rank of this host says of the attempt."""
        found = [self._board.read(local_rank) for local_rank in range(len(self._host.ranks))]
        return [
            RankMoments(
                *(each.count, each.torch_at, each.first_step_at, each.step_at, each.activities),
                work=(each.samples, each.tokens, each.flops),
                beside=each.beside,
                on_gpu=each.on_gpu,
            )
            for each in found
        ]

    def explain(self, failure: Failure) -> Failure:
        """The failure with what this machine knows of it."""
        local_rank = self.ranks.local_rank_of(failure.rank) if failure.rank is not None else None
        if local_rank is not None:
            failure = replace(failure, step=self.step(local_rank))

        from .explain import explained  # only a failure needs it

        return explained(failure, self._before, self._folders)

    def stalled(self, now: float, limit_s: float) -> float:
        """The seconds since a running rank made its last step, where they are too many; 0.0 where all ranks go on."""
        steps = [self._board.read(local_rank) for local_rank, _, _ in self.ranks.running()]
        return max((now - each.last_at for each in steps if stalled(each, now, limit_s)), default=0.0)

    def silent(self, now: float, limit_s: float) -> list[int]:
        """The running ranks whose steps nobody counts and that have printed nothing for `limit_s`."""
        found = []
        for local_rank, rank, _ in self.ranks.running():
            if not self._board.read(local_rank).last_at and now - self.ranks.heard_at(local_rank) > limit_s:
                found.append(rank)
        return found

    def expect_ranks(self, now: float) -> None:
        """Reports, once, that the engine has not started all ranks of this host in time, and what processes wait for."""
        waits = self._not_started() if now >= self._late_at else ""
        if not waits:
            return
        self._late_at = math.inf

        from .process_list import process_list  # only this failure needs it

        text = f"{self._plan.engine.value} has not started {waits} within {self._start_s:g} s ({START_S.name})"
        if self.engine.missing:
            text += f"; {self.engine.missing}"
        self._pipes.drain()
        seen = (
            process_list(self._tools.owner.left(), self._runner.public) or "no process of the engine runs on this host"
        )
        self._tools.console.say(f"algorun: {text}\n{seen}")
        trace = f"{self.engine.tail}\n{seen}".strip()
        self._runner.broken(Failure("engine", self._host.host, ExitCode.HANG, text, traceback=trace))

    def _not_started(self) -> str:
        """What the engine has not started, "" if nothing is missing."""
        if self._node is not None:
            missing = self.missing if self._waits_for_nodes and self._host.ranks else []
            missing = [] if self._node.is_alive and not missing else missing or [self._host.host]
            return f"{'the node' if len(missing) == 1 else 'the nodes'} of {listed(missing)}" if missing else ""
        waits = self.ranks.not_started
        return f"{'rank' if len(waits) == 1 else 'ranks'} {listed([str(rank) for rank in waits])}" if waits else ""
