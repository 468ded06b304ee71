"""One try at running the job on this host: its ranks, their engine's processes, and what is known of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from algorun.control.failure import Failure
from algorun.control.hang import Stack, of_one_rank
from algorun.control.messages import DaemonEnded, Message, StartDaemon
from algorun.errors import exit_code
from algorun.plan.plan import Plan

from .engine_processes import EngineProcesses
from .output import Pipes
from .rank_port import Peer
from .ranks import Ranks
from .step_counter import StepBoard, stalled
from .tools import Tools

if TYPE_CHECKING:
    from algorun.machine.failure_snapshot import Snapshot

ENGINE_WORD_S = 0.5  # an engine's own end is news only if no rank explains it by then


class Attempt:
    """`on_exit(local_rank, returncode, stderr_tail)` for each rank; `on_broken(text, log_tail)` for all else that fails;
    `on_idle()` when a process of the engine has ended. `send` goes to the hub, `folders` are those that the job writes
    to."""

    def __init__(
        self,
        tools: Tools,
        plan: Plan,
        host: str,
        folders: Sequence[str],
        on_exit: Callable[[int, int, str], None],
        on_broken: Callable[[str, str], None],
        on_idle: Callable[[], None],
        send: Callable[[Message], None],
    ) -> None:
        self._tools, self._plan, self._host, self._folders = tools, plan, plan.host(host), folders
        self._on_broken, self._on_idle = on_broken, on_idle
        self._before: Snapshot | None = None
        self._over = False
        self._pipes = Pipes(tools.loop, tools.console)
        self._board = StepBoard(tools.run_dir, len(self._host.ranks))
        self._ranks = Ranks(tools, plan, self._host, on_exit, self._broken)
        self._engine = EngineProcesses(tools, self._pipes, plan, host, send)

    def start(self) -> None:
        """Starts the engine, or the ranks where the engine is ours. Raises UserError where a program cannot start."""
        if self._host.starter:
            self._engine.start(self._host.starter, what=self._plan.engine.value)
        if not self._plan.engine.value.starts_ranks or not self._host.joined:
            self._ranks.start()

        from algorun.machine import failure_snapshot  # while the ranks start

        self._before = failure_snapshot.snapshot()

    # -- state -----------------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """True once all ranks of this host have ended."""
        return self._ranks.all_ended

    @property
    def quiet(self) -> bool:
        """True once nothing lives in the ranks' sessions."""
        return self._ranks.quiet

    @property
    def engine_busy(self) -> bool:
        """True while a process of the engine runs."""
        return self._engine.busy

    def place(self, rank: int, pid: int) -> tuple[int | None, bool]:
        """The local rank of a global one (None if it is not here), and whether this process is the rank itself."""
        local_rank = self._ranks.local_rank_of(rank)
        return local_rank, local_rank is not None and self._ranks.is_rank(local_rank, pid)

    # -- events ----------------------------------------------------------------------------------------------------

    def child_ended(self, pid: int, returncode: int) -> None:
        """A child of this process has ended, a rank or an engine's process."""
        if self._ranks.exited(pid, returncode):
            return
        if self._engine.is_starter(pid):
            word = f"{self._plan.engine.value} ended with {exit_code(returncode)} before its ranks"
            self._tools.loop.after(ENGINE_WORD_S, lambda: self._broken(word))
        elif not self._engine.is_daemon(pid, returncode):
            return
        self._on_idle()

    def peer_message(self, peer: Peer, message: dict[str, Any] | None) -> None:
        """A message of a process that the engine has started."""
        if message is not None and "daemon" in message:
            self._engine.daemon_wanted(peer, message)
        else:
            self._ranks.peer_message(peer, message)

    def daemon(self, message: StartDaemon | DaemonEnded) -> None:
        """The hub passes on what mpirun asks this host for, or that it has ended elsewhere."""
        if isinstance(message, DaemonEnded):
            self._engine.daemon_ended(message)
        elif trouble := self._engine.start_daemon(message):
            self._broken(trouble)

    def _broken(self, text: str) -> None:
        if not self._over:
            self._pipes.drain()
            self._on_broken(text, self._engine.tail)

    # -- the end ---------------------------------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        """To all ranks."""
        self._ranks.signal(number)

    def hush(self) -> None:
        """The cause is known: what an engine still says of ranks that go is for its file only."""
        self._engine.hush()

    def leave(self) -> None:
        """The job is over: the engine's processes may go."""
        self.hush()
        self._ranks.leave(0)

    def close(self) -> None:
        """Reads what is left, and closes all files."""
        self._over = True
        self._ranks.close()
        self._pipes.close()
        self._board.close()

    def clear_away(self) -> None:
        """Nothing of it lives any more, and another attempt follows in the same folders."""
        from . import stacks

        self.close()
        stacks.forget(self._tools.run_dir)

    # -- what is known ---------------------------------------------------------------------------------------------

    def step(self, local_rank: int) -> int:
        """The steps of optimizers that a rank has made, 0 where nobody counts."""
        return self._board.read(local_rank).count

    def explain(self, failure: Failure) -> Failure:
        """The failure with what this machine knows of it."""
        local_rank = self._ranks.local_rank_of(failure.rank) if failure.rank is not None else None
        if local_rank is not None:
            failure = replace(failure, step=self.step(local_rank))
        return explained(failure, self._before, self._folders)

    def stalled(self, now: float, limit_s: float) -> float:
        """For how long a running rank has made no step, where that is too long; 0.0 where all go on."""
        steps = [self._board.read(local_rank) for local_rank, _, _ in self._ranks.running()]
        return max((now - each.last_at for each in steps if stalled(each, now, limit_s)), default=0.0)

    def silent(self, now: float, limit_s: float) -> list[int]:
        """Running ranks that nobody counts steps of, and that have printed nothing for so long."""
        found = []
        for local_rank, rank, _ in self._ranks.running():
            if not self._board.read(local_rank).last_at and now - self._ranks.heard_at(local_rank) > limit_s:
                found.append(rank)
        return found

    def ask_for_stacks(self) -> None:
        """Has every process of every running rank write down what it is doing; `stacks` reads it moments later."""
        from . import stacks  # only a hang needs it

        for pid in stacks.askable(self._tools.run_dir):
            stacks.ask(pid, self._tools.run_dir)

    def stacks(self) -> Iterator[Stack]:
        """What each running rank is doing."""
        from . import stacks

        processes = stacks.by_session(self._tools.run_dir)
        for local_rank, rank, pid in self._ranks.running():
            count = self._board.read(local_rank).count
            of_rank = [self._stack(rank, count, each) for each in processes.get(pid, [])]
            if stacks.frozen(pid) or not of_rank:
                yield Stack(rank, self._host.host, count, frozen=stacks.frozen(pid))
            else:
                yield of_one_rank(of_rank)

    def _stack(self, rank: int, count: int, pid: int) -> Stack:
        from . import stacks

        text = stacks.read(pid, self._tools.run_dir)
        frames = stacks.frames(text)
        stack = Stack(rank, self._host.host, count, frames, not text and stacks.frozen(pid), text)
        return replace(stack, source=stacks.source(stack.own)) if stack.own else stack


def explained(failure: Failure, before: Snapshot | None, folders: Sequence[str]) -> Failure:
    """The failure with what this machine knows of it. `before` was taken when things were still well."""
    from algorun.machine import failure_snapshot  # only a failure needs these
    from algorun.outcome import hints

    return hints.explain(failure, failure_snapshot.look(before, folders))
