"""The ranks of one host: started here or by an engine, followed the same way."""

from __future__ import annotations

import functools
import os
import re
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass, field
from algorun.host.output.logs import RankLog
from algorun.host.output.pipes import Pipe
from algorun.host.processes.owner import alive_in, kill_sessions, send, send_below
from algorun.host.tools import Tools
from algorun.plan.plan import HostPlan, Plan, RankPlan, contract_names

from .rank_port import Fields, Peer

if TYPE_CHECKING:
    from algorun.common.event_loop import Timer
    from algorun.control.member.stop_order import StopOrder
    from algorun.host.output.progress_lines import ProgressLines

    from .filters import Filters

ENDED = (-signal.SIGTERM, 128 + signal.SIGTERM)  # the second: as a shell says it of its child
AGAIN_S = 0.25  # a program below a wrapper may begin, or end, after the stop
# Something may hold the output of ranks that have ended. A program that a script has left (`monitor &`) may do so for ever.
RESTS_S = 0.5  # since its last line: then nothing more is expected
FILTERS_S = 10.0  # for filters (`exec > >(tee log)`) to pass on the last lines
FAILED_FILTERS_S = 2.5  # the same after a failure: all hosts leave within 5 s
CAUSE_S = 0.7  # a failed rank's end is reported at most this much later, so that its filter can pass on the cause
FILTER_POLL_S = 0.05
ENGINE_WORD_S = 0.5  # for the engine to say why it has ended a rank


@dataclass(frozen=True, slots=True)
class RankRules:
    """What an engine changes about its ranks: `clean` may change their lines, and they get the variables `environ`. A process of
    the engine that has started a rank may leave `let_go_s` seconds after its rank has left with 0; None: at the end of the job."""

    clean: Callable[[bytes], bytes] = bytes
    environ: Mapping[str, str] = field(default_factory=dict)
    let_go_s: float | None = None


class Rank:
    """One rank at work: its process, its output, and the peer (rank_exec) that an engine started for it."""

    def __init__(self, plan: RankPlan, log: RankLog) -> None:
        self.plan, self.log = plan, log
        self.pid = 0
        self.pipes: list[Pipe] = []
        self.peer: Peer | None = None


class Ranks:
    """All ranks of this host. Calls `on_exit(local_rank, returncode, age_s, stderr_tail, tail_of_both)`, with the seconds since
    the end; `on_broken(problem)` for other faults: a UserError where the program cannot start. `blame_s`: how long the hub waits
    for the report of an earlier failure. `progress` finds the lines that ALGORUN_PROGRESS matches."""

    def __init__(
        self,
        tools: Tools,
        plan: Plan,
        host: HostPlan,
        rules: RankRules,
        on_exit: Callable[[int, int, float, str, str], None],
        on_broken: Callable[[str | UserError], None],
        blame_s: float,
        progress: ProgressLines | None = None,
    ) -> None:
        self._progress = progress
        self._tools, self._plan, self._host, self._rules = tools, plan, host, rules
        self._on_exit, self._on_broken = on_exit, on_broken
        self._cause_s = min(CAUSE_S, CAUSE_S * blame_s)
        self._ranks = {rank.local_rank: Rank(rank, self._log(rank)) for rank in host.ranks}
        self._ended: set[int] = set()
        # Of ranks whose end is not reported yet: their exit code, and when they ended.
        self._untold: dict[int, tuple[int, float]] = {}
        self._tells_ends: Timer | None = None
        self._filters: Filters | None = None
        self._gone: set[int] = set()  # ranks that the engine has ended
        self._asked = 0  # the signal that asked the ranks to stop: those that start later get it too
        self._orders: dict[int, StopOrder] = {}  # of each rank that was asked, by its pid
        self._tells = False
        self._ended_at = 0.0  # when the last rank ended
        self._failed = False  # True once a rank has ended with another code than 0, and not because of a stop
        self.cut_off = 0  # ranks that the stop has ended before they could save

    def start(self) -> None:
        """Starts the ranks that no engine starts. Raises UserError where the program cannot start."""
        for rank in self._ranks.values():
            out, err = self._pipes(rank)
            try:
                rank.pid = self._tools.owner.start(
                    self._plan.argv, self._environ(rank), self._plan.cwd, out, err, what="program"
                )
            finally:
                os.close(out)
                os.close(err)

    def exited(self, pid: int, returncode: int) -> bool:
        """A child has ended; False if it is none of the ranks."""
        for local_rank, rank in self._ranks.items():
            if rank.pid == pid and rank.peer is None:
                self._end(local_rank, rank, returncode)
                return True
        return False

    def running(self) -> list[tuple[int, int, int]]:
        """The local rank, rank and pid of each rank that runs."""
        found = ((local, rank.plan.rank, rank.pid) for local, rank in self._ranks.items() if rank.pid)
        return [each for each in found if each[0] not in self._ended]

    def heard_at(self, local_rank: int) -> float:
        """When this rank last printed something, or began."""
        return self._ranks[local_rank].log.fed_at

    def matched_at(self, local_rank: int) -> float:
        """When it last printed a line that ALGORUN_PROGRESS matches; 0.0: never, or the setting has no effect any more."""
        return 0.0 if self._progress is None or self._progress.off else self._ranks[local_rank].log.matched_at

    def show_unfinished(self, now: float) -> None:
        """Shows lines that ranks have begun and do not end. Call it every second."""
        for rank in self._ranks.values():
            rank.log.show_unfinished(now)

    def tails(self, local_rank: int) -> tuple[str, str]:
        """The last lines that this rank and its children have printed so far: on both streams, and on stderr alone."""
        rank = self._ranks[local_rank]
        for pipe in rank.pipes:
            pipe.drain()
        return rank.log.printed, rank.log.tail

    def local_rank_of(self, rank_number: int) -> int | None:
        """The local rank of a global one, None if it is not here."""
        return next((local for local, rank in self._ranks.items() if rank.plan.rank == rank_number), None)

    def is_rank(self, local_rank: int, pid: int) -> bool:
        """True if this process is the rank itself and not something that it started."""
        return self._ranks[local_rank].pid == pid

    @property
    def all_ended(self) -> bool:
        """True once all ranks have ended, and each end is reported."""
        return len(self._ended) == len(self._ranks) and not self._untold

    @property
    def all_run(self) -> bool:
        """True while each rank has started, and none has ended; never without ranks."""
        return bool(self._ranks) and not self._ended and all(rank.pid for rank in self._ranks.values())

    @property
    def not_started(self) -> list[int]:
        """The global numbers of the ranks that the engine has not started."""
        return [rank.plan.rank for local, rank in self._ranks.items() if not rank.pid and local not in self._ended]

    def give_up(self) -> None:
        """Ranks that the engine has not started count as ended."""
        self._ended |= {local for local, rank in self._ranks.items() if not rank.pid}

    @property
    def quiet(self) -> bool:
        """True once nothing lives in the ranks' sessions. A shell that was told to stop may leave children that save."""
        return not alive_in(rank.pid for rank in self._ranks.values() if rank.pid)

    def still_printing(self, now: float) -> bool:
        """True while something that the ended ranks have left behind passes on their last lines."""
        held = self._held()
        if not held or now - self._ended_at > FILTERS_S:
            return False
        prints = now - max(self._ended_at, *(rank.log.fed_at for rank in held)) < RESTS_S
        return self._tools.console.full or prints or self._filtered(now)

    def filtered(self, now: float) -> bool:
        """True while filters pass on the last lines of ranks, one of which has failed; at most 2.5 s after the last end."""
        return self._failed and now - self._ended_at < FAILED_FILTERS_S and self._filtered(now)

    def _held(self) -> list[Rank]:
        """Ranks that have ended, and whose output something holds."""
        ended = [rank for local_rank, rank in self._ranks.items() if local_rank in self._ended]
        return [rank for rank in ended if any(pipe.open for pipe in rank.pipes)]

    def _filtered(self, now: float) -> bool:
        """True while filters pass on the last lines of ranks that have ended."""
        held = self._held()
        if not held:
            return False
        if self._filters is None:
            from .filters import Filters  # late: most ranks leave nothing behind

            self._filters = Filters()
        ends = [pipe.fd for rank in held for pipe in rank.pipes if pipe.open]
        return self._filters.at_work(now, [rank.pid for rank in held], ends)

    def signal(self, number: int) -> None:
        """Asks every rank to stop; with SIGKILL it kills the ranks and all that they have started, and no rank follows."""
        if number == signal.SIGKILL:
            kill_sessions(rank.pid for rank in self._ranks.values() if rank.pid)
            self.give_up()
            return
        self._asked = number
        self._ended |= self._gone
        for local, rank in self._ranks.items():
            if rank.pid and local not in self._ended:
                self._ask(rank.pid)

    def _ask(self, pid: int) -> None:
        """Tells one rank to stop, now and whatever begins below it later."""
        from algorun.control.member.stop_order import StopOrder  # late: most jobs are never told to stop

        self._orders.setdefault(pid, StopOrder(pid))
        if not self._tells:
            self._tells = True
            self._tools.loop.after(0, self._tell)

    def _tell(self) -> None:
        """Tells the processes whose turn it is, and looks again until nothing of the ranks is left."""
        from .stop_look import look

        seen, now = look(), self._tools.loop.now()
        born = {each.pid: each.born for each in seen}
        for order in self._orders.values():
            for pid in order.next(now, seen):
                send(pid, born[pid], self._asked)
        if not (self.all_ended and self.quiet):
            self._tools.loop.after(AGAIN_S, self._tell)

    def leave(self, code: int) -> None:
        """Lets the engine's processes go."""
        for rank in self._ranks.values():
            if rank.peer is not None:
                rank.peer.send({"leave": code})

    def close(self) -> None:
        """Reads what is left and closes the log files."""
        for rank in self._ranks.values():
            for pipe in rank.pipes:
                pipe.drain()
                pipe.close()
            rank.log.close()

    def peer_message(self, peer: Peer, message: Fields | None) -> None:
        """A message of a rank_exec process; None when it has gone."""
        if message is None:
            self._peer_gone(peer)
        elif "local_rank" in message:
            self._register(peer, message)
        else:
            found = next(((local, r) for local, r in self._ranks.items() if r.peer is peer), None)
            if found is None:
                return
            local_rank, rank = found
            if "started" in message:
                rank.pid = int(message["started"])
                self._tools.owner.own(rank.pid)
                if self._asked:
                    self._ask(rank.pid)
            elif "failed" in message:
                from algorun.host.processes.program_start import explained  # imported late: only this failure uses it

                number, _, file = str(message["failed"]).partition(" ")
                errno = int(number) if re.fullmatch("[0-9]{1,4}", number) else 0
                self._on_broken(explained(self._plan.argv, self._plan.cwd, errno, file))
            elif "exited" in message:
                self._tools.owner.forget_ended()
                self._end(local_rank, rank, int(message["exited"]))

    def _register(self, peer: Peer, message: Fields) -> None:
        local_rank = int(message["local_rank"])
        if local_rank in self._ended:  # given up: its engine is about to be killed
            return
        rank = self._ranks.get(local_rank)
        if rank is None or rank.peer is not None or int(message["rank"]) != rank.plan.rank:
            expected = ", ".join(str(r.plan.rank) for r in self._ranks.values())
            self._on_broken(f"the engine started rank {message['rank']} here, where the plan has {expected}")
            return
        rank.peer = peer
        out, err = self._pipes(rank)
        keep = contract_names(self._plan, self._host, rank.plan) if self._plan.keeps_contract else []
        env = self._additions(rank)
        peer.send_order(self._plan.argv, self._plan.cwd, env, keep, (out, err))
        os.close(out)
        os.close(err)

    def _log(self, rank: RankPlan) -> RankLog:
        label, name = f"{rank.rank} {self._host.host}", f"rank-{rank.rank:05d}.log"
        finds = None if self._progress is None else self._progress.found_in
        return RankLog(label, name, self._tools.logs, self._tools.console, self._rules.clean, finds)

    def _peer_gone(self, peer: Peer) -> None:
        for local_rank, rank in self._ranks.items():
            if rank.peer is peer and local_rank not in self._ended:
                if rank.pid:
                    send_below(rank.pid, signal.SIGKILL)
                self._gone.add(local_rank)
                self._tools.loop.after(ENGINE_WORD_S, functools.partial(self._ended_by_engine, local_rank))
                if self._asked:  # a stop needs no words of the engine
                    self._ended_by_engine(local_rank)

    def _ended_by_engine(self, local_rank: int) -> None:
        if local_rank not in self._ended:
            self._on_broken(f"the engine ended rank {self._ranks[local_rank].plan.rank}")
            self._ended.add(local_rank)

    def _pipes(self, rank: Rank) -> tuple[int, int]:
        """Makes two pipes. Their reading ends are watched; their writing ends are returned."""
        ends = []
        for stream in (1, 2):
            reader, writer = os.pipe()
            feed = functools.partial(rank.log.feed, stream)
            rank.pipes.append(Pipe(self._tools.loop, reader, self._tools.console, feed))
            ends.append(writer)
        return ends[0], ends[1]

    def _additions(self, rank: Rank) -> dict[str, str]:
        shim = {
            "ALGORUN_RUN_DIR": self._tools.run_dir,
            "ALGORUN_SHIM": f"{self._tools.programs.home}/rank_shim.py",
            "ALGORUN_RANK": str(rank.plan.rank),  # a user's launcher below the rank may set RANK anew
            "ALGORUN_LOCAL_RANK": str(rank.plan.local_rank),
        }
        return {**self._plan.environ(self._host, rank.plan), **shim, **self._rules.environ}

    def _environ(self, rank: Rank) -> dict[str, str]:
        return {**os.environ, **self._additions(rank)}

    def _let_go(self, peer: Peer) -> None:
        if not self._asked:
            peer.send({"leave": 0})

    def _end(self, local_rank: int, rank: Rank, returncode: int) -> None:
        """A rank has ended."""
        if local_rank in self._ended:
            return
        self._ended.add(local_rank)
        self._ended_at = self._tools.loop.now()
        self._failed |= returncode != 0 and not self._asked
        order = self._orders.get(rank.pid)
        if order is not None and (returncode == -signal.SIGKILL or (returncode in ENDED and not order.some_handled)):
            self.cut_off += 1
        if returncode == 0 and rank.peer is not None and self._rules.let_go_s is not None:
            self._tools.loop.after(self._rules.let_go_s, functools.partial(self._let_go, rank.peer))
        self._untold[local_rank] = returncode, self._ended_at
        self._tell_ends()

    def _tell_ends(self) -> None:
        """Reports the ends of ranks; of those that have failed once filters have passed on the cause."""
        now = self._tools.loop.now()
        for local_rank in self._untold:
            self._drain(local_rank)
        held = self._held()
        waiting = {
            local_rank
            for local_rank, (returncode, ended_at) in self._untold.items()
            if returncode and now - ended_at < self._cause_s and self._ranks[local_rank] in held
        }
        if self._asked or not waiting or not self._filtered(now):
            waiting = set()
        for local_rank in set(self._untold) - waiting:
            self._report_end(local_rank)
        if self._tells_ends is not None:
            self._tells_ends.cancel()
        self._tells_ends = self._tools.loop.after(FILTER_POLL_S, self._tell_ends) if waiting else None

    def report_ends(self) -> None:
        """Reports the ends that wait for a filter: a stop comes, after which a failure would count as a part of it."""
        for local_rank in list(self._untold):
            self._drain(local_rank)
            self._report_end(local_rank)

    def _report_end(self, local_rank: int) -> None:
        if local_rank not in self._untold:  # an earlier report has led to a stop
            return
        returncode, ended_at = self._untold.pop(local_rank)
        rank, age_s = self._ranks[local_rank], self._tools.loop.now() - ended_at
        self._on_exit(local_rank, returncode, age_s, rank.log.tail, rank.log.printed)

    def _drain(self, local_rank: int) -> None:
        for pipe in self._ranks[local_rank].pipes:
            pipe.drain()
