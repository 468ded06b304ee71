"""The stacks of this host's ranks: asked for when a rank hangs, written to files, and sent to the hub."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from algorun.common.fast_dataclasses import replace
from algorun.control.hang.hang import Stack, of_one_rank
from algorun.control.wire import messages
from algorun.control.wire.messages import StacksSent
from algorun.host.measuring.step_counter import StepBoard
from algorun.host.tools import Tools
from algorun.job.paths import Paths
from algorun.machine.system_files import read_text
from algorun.outcome import report

from .ranks import Ranks

if TYPE_CHECKING:
    from algorun.host.processes.owner import Stat

# faulthandler reads the frames of all threads while they run: a thread that answers in Python at that moment can make it
# crash the process (1 of 600 questions to a busy thread, CPython 3.11). So the calls are asked for after the stacks.
STACKS_S = 0.3  # from the question for stacks to the one for calls
CALLS_S = 0.5  # from there until all answers are read
EARLIEST_S = 2.0  # of a pause: until then no rank is asked for its calls


class RankStacks:
    """The stacks of `ranks` on `host`."""

    def __init__(self, tools: Tools, paths: Paths, host: str, ranks: Ranks, board: StepBoard) -> None:
        self._tools, self._paths, self._host, self._ranks = tools, paths, host, ranks
        self._board = board
        self._asked_of = 0.0  # the last step before the pause in which ranks were asked for their calls

    def ask(self) -> None:
        """Asks every process of every running rank for its stacks. A moment later the hub gets those of all ranks."""
        from . import rank_calls, stacks  # only a hang needs them

        folder = self._tools.run_dir
        # The number of a process that has ended may be a stranger's; that of a rank that runs, and of its session, is not.
        sessions = {pid for _, _, pid in self._ranks.running()}
        by_session = stacks.by_session(folder).items()
        asked = {pid: stacks.ask(pid, folder) for session, pids in by_session if session in sessions for pid in pids}
        for pid in asked:
            rank_calls.forget(pid, folder)
        self._tools.loop.after(STACKS_S, lambda: self._ask_for_calls(asked))

    def look(self, now: float, limit_s: float) -> None:
        """Asks the ranks for their calls, once in a pause of all, when half of the shorter limit has passed: of `limit_s` and
        the one of their own calls. At the latter torch ends them, and all at once where all wait."""
        steps = [self._board.read(local_rank) for local_rank, _, _ in self._ranks.running()]
        last_at = max((each.last_at for each in steps), default=0.0)
        if not last_at or last_at == self._asked_of or now - last_at < EARLIEST_S:
            return
        from . import rank_calls  # only a pause needs it

        limits = (rank_calls.limit_s(each.pid, self._tools.run_dir) for each in steps if each.pid)
        if now - last_at >= min([limit_s, *limits]) / 2:
            self._asked_of = last_at
            self._ask_for_calls_alone()

    def _ask_for_calls_alone(self) -> None:
        """This disturbs no rank. A moment later the hub gets the calls of the ranks that have some."""
        from . import rank_calls, stacks

        folder = self._tools.run_dir
        processes = stacks.by_session(folder)
        for _, _, session in self._ranks.running():
            for pid in processes.get(session, []):
                rank_calls.forget(pid, folder)
                rank_calls.ask(pid, folder)
        self._tools.loop.after(CALLS_S, self._send_calls)

    def _send_calls(self) -> None:
        from . import rank_calls, stacks

        processes = stacks.by_session(self._tools.run_dir)
        for local_rank, rank, session in self._ranks.running():
            for pid in processes.get(session, []):
                if calls := rank_calls.read_calls(pid, rank, self._tools.run_dir):
                    stack = Stack(rank, self._host, self._board.read(local_rank).count, calls=calls)
                    self._tools.send(messages.short(stack))

    def _ask_for_calls(self, asked: dict[int, bool]) -> None:
        """`asked`: the processes of the ranks, and which of them were to write their stacks."""
        from . import rank_calls, stacks

        for pid, stack in asked.items():
            if not stack or stacks.read_stacks(pid, self._tools.run_dir):
                rank_calls.ask(pid, self._tools.run_dir)
        self._tools.loop.after(CALLS_S, self._send_all)

    def _send_all(self) -> None:
        for stack in self._read():
            report.write_stack(self._paths, stack)
            self._tools.send(messages.short(stack))
        self._tools.send(StacksSent())

    def _read(self) -> Iterator[Stack]:
        """What each running rank is doing."""
        from . import stacks

        processes = stacks.by_session(self._tools.run_dir)
        for local_rank, rank, pid in self._ranks.running():
            steps = self._board.read(local_rank)
            count, sign_at = steps.count, max(steps.last_at, self._ranks.matched_at(local_rank))
            quiet_s = time.monotonic() - sign_at if steps.last_at else None
            asked = stacks.speaking(processes.get(pid, []), self._tools.run_dir)
            of_rank = [self._stack(rank, count, each) for each in asked]
            if stacks.frozen(pid) or not of_rank:
                frozen = stacks.frozen(pid)
                place = "" if frozen else waiting_place(pid)
                yield Stack(rank, self._host, count, frozen=frozen, source=place, quiet_s=quiet_s)
            else:
                yield replace(of_one_rank(of_rank), quiet_s=quiet_s)

    def _stack(self, rank: int, count: int, pid: int) -> Stack:
        from . import rank_calls, stacks

        text = stacks.read_stacks(pid, self._tools.run_dir)
        frames = stacks.frames(text)
        calls = rank_calls.read_calls(pid, rank, self._tools.run_dir)
        stack = Stack(rank, self._host, count, frames, not text and stacks.frozen(pid), text, calls=calls)
        return replace(stack, source=stacks.source(stack.own)) if stack.own else stack


def waiting_place(pid: int) -> str:
    """Of a rank without Python: the name of its innermost process, and where in the kernel that waits, as far as that is known."""
    from algorun.host.processes.owner import processes, stat_of

    found, stat = processes(), stat_of(pid)
    while stat is not None and (below := [each for each in found if each.parent == stat.pid and not each.ended]):
        stat = max(below, key=_newest)
    if stat is None:
        return ""
    place = read_text(f"/proc/{stat.pid}/wchan")
    return f"{stat.name}, {stat.state} in {place}" if place not in ("", "0") else f"{stat.name}, {stat.state}"


def _newest(stat: Stat) -> int:
    return stat.born
