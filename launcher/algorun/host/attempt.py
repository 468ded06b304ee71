"""One try at running the job on this host: its ranks and its engine, and what is known of them.

Tells the state machine (control/member/member.py) what happens to the ranks, and has the supervisor do what it asks for.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from algorun.common.errors import ExitCode
from algorun.common.fast_dataclasses import replace
from algorun.control.failures.failure import Failure, Raised
from algorun.control.failures.non_finite import NonFiniteValue
from algorun.control.hang.host_look import HostLook
from algorun.control.member.actions import Action
from algorun.control.member.member import Member, MemberState
from algorun.job.config import JobConfig
from algorun.outcome import report
from algorun.plan.plan import Plan
from algorun.timing.clock import RankMoments
from algorun.timing.host_figures import HostFigures

from .engines.engine import END_WORD_S, EngineAtWork
from .explain import public
from .measuring.measuring import Measuring
from .measuring.step_counter import StepBoard, Steps, has_no_step
from .ranks.rank_port import Fields, Peer
from .ranks.rank_stacks import RankStacks
from .ranks.ranks import Ranks
from .tools import Tools

if TYPE_CHECKING:
    from algorun.control.hang.standstill import Signs
    from algorun.machine.failure_snapshot import Snapshot

    from .output.progress_lines import ProgressLines
    from .ranks.rank_looks import RankLooks

DRAIN_POLL_S = 0.05  # between two looks at what shells have left
CLOCK_TICK_S = 0.02  # times of files come from a clock that ticks so often, or more often


class Supervising(Protocol):
    """What an attempt needs of the supervisor."""

    def do(self, actions: list[Action]) -> None:
        """Does what the state machine asks for."""

    def leave(self) -> None:
        """Leaves, if nothing is left to wait for."""

    def drain(self) -> None:
        """Reads what ranks have reported of their exceptions."""


class Attempt:
    """The `ranks` of this host, and its `engine`."""

    def __init__(
        self,
        tools: Tools,
        config: JobConfig,
        plan: Plan,
        engine: EngineAtWork,
        measuring: Measuring,
        member: Member,
        supervisor: Supervising,
    ) -> None:
        self._tools, self._config, self._plan = tools, config, plan
        self._measuring, self._member, self._supervisor = measuring, member, supervisor
        self._host = plan.host(config.resources.current_host)
        self._board = StepBoard(tools.run_dir, len(self._host.ranks))
        self.engine = engine
        self._progress = self._progress_lines()
        self.ranks = Ranks(
            tools,
            plan,
            self._host,
            engine.rules(plan),
            self._rank_exited,
            engine.broken,
            config.limits.blame_s,
            self._progress,
        )
        self._stacks = RankStacks(tools, config.paths, self._host.host, self.ranks, self._board)
        self._began_at = tools.loop.now()
        self._looks: RankLooks | None = None  # while the hub waits for what this host sees
        self.before: Snapshot | None = None  # what the machine was like when the ranks started

    def _progress_lines(self) -> ProgressLines | None:
        if not self._config.progress:
            return None
        from .output.progress_lines import ProgressLines  # imported late: most jobs set no expression

        return ProgressLines(self._config.progress, self._tools.warn)

    def start(self) -> None:
        """Starts the engine, or the ranks where no engine does. Raises UserError where a program cannot start."""
        numbers = [rank.rank for rank in self._host.ranks]
        self._measuring.begin(self._plan.attempt, numbers, self._board)
        self.engine.start(self._plan, self.ranks)
        self._measuring.started(self._plan.attempt, numbers)

        from algorun.machine import failure_snapshot  # while the ranks start

        self.before = failure_snapshot.snapshot()

    @property
    def _now(self) -> float:
        return self._tools.loop.now()

    # -- events ----------------------------------------------------------------------------------------------------

    def child_ended(self, pid: int, returncode: int) -> None:
        """A child of this process has ended, a rank or a process of the engine."""
        if self.ranks.exited(pid, returncode) or not self.engine.child_ended(pid, returncode):
            return
        self._supervisor.leave()
        if not self.engine.busy:
            self._tools.loop.after(END_WORD_S, self._give_up_in_stop)

    def _give_up_in_stop(self) -> None:
        """In a stop no more ranks follow once the engine has ended."""
        if self._member.stopping:
            self.ranks.give_up()
            self.look_whether_done()

    def peer_message(self, peer: Peer, message: Fields | None) -> None:
        """A message of a process that the engine has started; None is its end."""
        if message is not None and "daemon" in message:
            self.engine.asked(peer, message)
        else:
            self.ranks.peer_message(peer, message)
        self.look_whether_done()

    def rank_raised(self, raised: Raised) -> None:
        """An exception has reached the top in a rank, or in a process below one."""
        local_rank = self.ranks.local_rank_of(raised.rank)
        if local_rank is None:
            return
        if raised.type.startswith("ray."):
            from algorun.control.failures import ray_errors  # imported late: only this exception uses it

            raised = ray_errors.plain(raised, self._plan.hosts_by_address)
        is_rank = self.ranks.is_rank(local_rank, raised.pid)
        tails = self.ranks.tails(local_rank) if is_rank else ()
        self._supervisor.do(self._member.rank_raised(self._now, local_rank, raised, is_rank=is_rank, tails=tails))

    def found_non_finite(self, value: NonFiniteValue) -> NonFiniteValue:
        """The first value that is not finite of a rank, with what this host knows."""
        from algorun.machine.newest_checkpoint import newest_before  # imported late: few jobs have such values

        paths, name = self._config.paths, public(value.name, self._config)
        age_s = max(0.0, time.monotonic() - value.at) + CLOCK_TICK_S
        checkpoint = newest_before(paths.checkpoints, time.time() - age_s)
        return replace(value, attempt=self._plan.attempt, checkpoint=checkpoint, name=name)

    def _rank_exited(self, local_rank: int, returncode: int, age_s: float, stderr_tail: str, printed: str) -> None:
        """A rank has ended `age_s` ago; -n for signal n. `printed`: the end of both its streams."""
        self._supervisor.drain()  # its exception arrives before its end
        step = self._board.read(local_rank).count
        actions = self._member.rank_exited(self._now, local_rank, returncode, stderr_tail, step, printed, age_s)
        self._supervisor.do(actions)
        self.look_whether_done()

    def look_whether_done(self) -> None:
        """Tells the hub once all ranks of this host have ended, and their last lines are there; in a stop, once their sessions are
        empty too."""
        if not self.ranks.all_ended:
            return
        if self._member.state in (MemberState.LEAVE, MemberState.BYE):
            self._supervisor.leave()
        elif self._still_works():
            self._tools.loop.after(DRAIN_POLL_S, self.look_whether_done)
        elif self._member.awaits_ranks:
            self._measuring.ranks_ended()
            leads = self._host.host == self._config.resources.hosts[0]
            note = public(report.figures(self._config.paths.summary), self._config) if leads else ""
            self._supervisor.do(self._member.all_ranks_gone(self._now, note, self.ranks.cut_off))

    def _still_works(self) -> bool:
        """True while something that the ended ranks have started works: in a stop anything, else what passes on their last lines."""
        return not self.ranks.quiet if self._member.stopping else self.ranks.still_printing(self._now)

    def signal(self, number: int) -> None:
        """A signal to all ranks of this host."""
        self.ranks.signal(number)
        self.engine.signal(number)
        if number == signal.SIGKILL or self.ranks.all_ended:
            self.look_whether_done()

    # -- while the ranks run ---------------------------------------------------------------------------------------

    def look(self, samples: Sequence[HostFigures]) -> None:
        """Looks, at every heartbeat of the hub, whether each rank has started, and still makes steps or at least prints.

        `samples`: this host's figures since the last call.
        """
        now, limit_s = self._now, self._config.limits.hang_s
        self.ranks.show_unfinished(now)
        self._expect_ranks(now)
        ranks_run = self.ranks.all_run
        self._measuring.look(now, samples, ranks_run=ranks_run, loaded=ranks_run or not self._host.ranks)
        self._stacks.look(now, limit_s)
        if self._looks is not None:
            self._looks.heard(samples)
        idle_s = self._idle_s(now, limit_s)
        if idle_s:
            self._supervisor.do(self._member.hangs(now, idle_s))
        self._look_for_signs(now, limit_s)

    def ask_for_stacks(self) -> None:
        """The hub gets the stacks of all ranks of this host, a moment after they were asked."""
        self._stacks.ask()

    def _idle_s(self, now: float, limit_s: float) -> float:
        """The seconds since a running rank made its last step, where they are too many; 0.0 where all ranks go on."""
        steps = [self._with_matches(local_rank) for local_rank, _, _ in self.ranks.running()]
        return max((now - each.last_at for each in steps if has_no_step(each, now, limit_s)), default=0.0)

    def _with_matches(self, local_rank: int) -> Steps:
        """A rank's steps; a line that ALGORUN_PROGRESS matches is a sign of life between two of them."""
        steps, matched_at = self._board.read(local_rank), self.ranks.matched_at(local_rank)
        return replace(steps, last_at=matched_at) if 0 < steps.last_at < matched_at else steps

    def _look_for_signs(self, now: float, limit_s: float) -> None:
        """Tells the hub where no rank of this host shows progress any more, and where one goes on."""
        if self.ranks.not_started or now - self._began_at < limit_s:
            return
        from algorun.control.hang.standstill import silent_s  # no start needs it

        signs = [self._signs(local_rank) for local_rank, _, _ in self.ranks.running()]
        if signs:
            self._supervisor.do(self._member.silent(silent_s(signs, now, limit_s)))
        searched = self._progress is not None and not self._progress.off
        if searched and signs and not any(each.matched_at for each in signs):
            self._supervisor.do(self._member.unmatched())

    def _signs(self, local_rank: int) -> Signs:
        from algorun.control.hang.standstill import Signs  # as above

        steps, ranks = self._board.read(local_rank), self.ranks
        return Signs(
            ranks.heard_at(local_rank), ranks.matched_at(local_rank), steps.progress_at, steps=steps.last_at > 0
        )

    def look_closely(self, pause_s: float) -> None:
        """Looks at all processes of the ranks of this host twice, and tells the hub what it has seen."""
        if self._looks is not None:  # it still looks for an earlier question
            return
        from .ranks.rank_looks import LookRules, RankLooks  # only silence needs it

        rules = LookRules(self.engine.node, self._plan.world_size == 1, self._signs, self._config.limits.hang_s)
        self._looks = RankLooks(self._tools, self.ranks, rules, pause_s, self._looked)

    def _looked(self, look: HostLook) -> None:
        self._looks = None
        self._supervisor.do(self._member.looked(look))

    def _expect_ranks(self, now: float) -> None:
        """Reports, once, that the engine has not started all ranks of this host in time, and what processes wait for."""
        text = self.engine.overdue(now)
        if not text:
            return

        from .processes.process_list import process_list  # imported late: only this failure uses it

        left = process_list(self._tools.owner.left(), lambda words: public(words, self._config))
        seen = left or "no process of the engine runs on this host"
        self._tools.say(f"{text}\n{seen}")
        trace = f"{self.engine.last_words()}\n{seen}".strip()
        self._tools.broken(Failure("engine", self._host.host, ExitCode.HANG, text, traceback=trace))

    # -- what is known ---------------------------------------------------------------------------------------------

    def step_of(self, rank: int | None) -> int:
        """The optimizer steps that a rank of this host has made, 0 where nobody counts or it is not here."""
        local_rank = self.ranks.local_rank_of(rank) if rank is not None else None
        return self._board.read(local_rank).count if local_rank is not None else 0

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

    # -- the end ---------------------------------------------------------------------------------------------------

    def over(self) -> None:
        """The attempt is over, well or not."""
        if self._looks is not None:
            self._looks.stop()
        self._measuring.attempt_over()
        self.engine.hush()

    def leave(self, *, well: bool) -> None:
        """The job is over, and has ended well or not: the engine's processes may go."""
        self.ranks.leave(0)
        self.engine.leave(well=well)

    def close(self) -> None:
        """Reads what is left, and closes all files."""
        self.engine.close()
        self.ranks.close()
        self._board.close()

    def clear_away(self) -> None:
        """Removes its files: nothing of it lives any more, and another attempt follows in the same folders."""
        from .ranks import stacks

        self.engine.keep_logs()
        self._measuring.keep_trace()  # not before the ranks' end: it may take a second
        self.close()
        stacks.forget(self._tools.run_dir)
