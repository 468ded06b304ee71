"""Chooses the root cause: which failure the job ends with, the same one on all hosts. Pure.

1. The first reported failure, or a lost host, opens a window (ALGORUN_BLAME_S): other hosts report what they know.
2. Where all reports only say that a peer is missing, ranks of which nothing is known have 3 s more to end.
3. Where all calls of all ranks time out at once, the calls that ranks told half-way to that limit may explain it.
4. Where ranks have waited in vain for a rank that still lives, or a rank makes no steps, all hosts are asked for the
   stacks of their ranks first (inquiry.py, hang.py).
5. `likeliest_cause` (failure_reports.py) picks the failure whose own words are nearest to a cause (peer_errors.py),
   and of equals the earliest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from algorun.common.fast_dataclasses import replace
from algorun.control.failures.failure import Failure, RankLeft
from algorun.control.hang.hang import Stack
from algorun.control.wire.messages import AskStacks

from .failure_reports import FailureReports, only_misses_a_peer

if TYPE_CHECKING:
    from .inquiry import Inquiry
    from .memory_kills import MemoryKills


class RootCause:
    """What the hub knows of the failures of one attempt, and when it can name the root cause."""

    def __init__(self, leader: str, window_s: float) -> None:
        self._leader = leader
        self._reports = FailureReports(window_s)
        self._inquiry: Inquiry | None = None
        self._memory_kills: MemoryKills | None = None
        self._not_before = -math.inf  # hosts are asked again about a missing step
        self._told: dict[int, Stack] = {}  # what ranks have told in the last long pause, before anything had failed

    @property
    def deadline(self) -> float:
        """When `due` has to be asked; never, while nothing has failed."""
        times = [self._reports.deadline, self._inquiry.deadline if self._inquiry is not None else None]
        return min((each for each in times if each is not None), default=math.inf)

    @property
    def open(self) -> bool:
        """True from the first failure until the judgement."""
        return self._reports.deadline is not None or (self._inquiry is not None and bool(self._reports))

    @property
    def judging(self) -> bool:
        """True while something has failed or hangs, and is not judged yet."""
        return self.window_open or self._inquiry is not None

    @property
    def window_open(self) -> bool:
        """True while hosts have time to report."""
        return self._reports.deadline is not None

    def failed(self, now: float, failure: Failure, *, judge: bool = True) -> None:
        """A failure was reported. With `judge` it opens the window; without, it counts only once another one does."""
        if self._reports.add(now, failure) and judge:
            self.weigh(now)

    def weigh(self, now: float) -> None:
        """Opens the window, unless hosts are being asked about a hang: the hang began before."""
        if self._inquiry is None:
            self._reports.open(now)

    def memory_kill(self, host: str, text: str) -> None:
        """The kernel has killed processes of a host for memory: no failure, if nobody misses them."""
        if self._memory_kills is None:
            from .memory_kills import MemoryKills  # imported late: most jobs do not use it

            self._memory_kills = MemoryKills()
        self._memory_kills.heard(host, text)

    def rank_left(self, now: float, left: RankLeft) -> None:
        """A rank has left with 0. That alone is no failure: uneven work ends like this too."""
        self._reports.rank_left(now, left)

    def hang(self, now: float, idle_s: float) -> AskStacks | None:
        """A rank has made no step for `idle_s`: all hosts are asked for stacks, unless another failure is judged, or the rank for which
        the others wait has just gone on."""
        return None if self.judging or now < self._not_before else self._ask(now, idle_s)

    def stands_still(self, now: float, idle_s: float, worker: str) -> AskStacks | None:
        """No rank has shown progress for `idle_s`, and all stand still: as `hang`. `worker`: that of an engine's node which holds
        them up, "" without one."""
        return None if self.judging else self._ask(now, idle_s, silent=True, worker=worker)

    def stack(self, stack: Stack, ranks: int) -> None:
        """What one rank is doing. At most one stack for each of the job's `ranks` is kept."""
        if self._inquiry is None:
            if stack.rank in self._told or len(self._told) < ranks:
                self._told[stack.rank] = stack
        elif len(self._inquiry.stacks) < ranks:
            self._inquiry.stacks.append(stack)

    def stacks_sent(self, host: str) -> set[str]:
        """This host has sent all its stacks. Returns the hosts that have; empty where nobody was asked."""
        if self._inquiry is None:
            return set()
        self._inquiry.answered.add(host)
        return self._inquiry.answered

    def stopped(self, now: float) -> None:
        """The job was told to stop: a hang no longer matters, failures that were reported before still do."""
        self._inquiry = None
        if self._reports:
            self.weigh(now)

    def due(self, now: float, ranks: int, attempt: int, *, stopping: bool) -> Failure | AskStacks | None:
        """The root cause once it can be named; `AskStacks` where hosts have to be asked first; None until then.

        `ranks` is how many the job has.
        """
        if self._inquiry is not None and now >= self._inquiry.deadline:
            return self.after_stacks(now, ranks, attempt)
        if not self._reports.due(now, ranks):
            return None
        in_vain = [] if stopping else self._reports.in_vain(ranks)
        return self._ask(now, in_vain=in_vain) if in_vain else self._by_calls(self._reports.cause(ranks))

    def after_stacks(self, now: float, ranks: int, attempt: int) -> Failure | None:
        """The rank that holds the others up, unless something else has failed before. None where the rank goes on for which the
        others wait: then nothing is wrong."""
        assert self._inquiry is not None
        hanging = self._inquiry.failure(now, self._leader, attempt, self._reports.left_ranks(), ranks)
        if hanging is None and not self._reports:
            # Of several hosts whose ranks wait, others tell it a moment later. Each tells it again once the time has doubled.
            self._not_before = now + self._inquiry.idle_s / 4
            self._inquiry = None
            return None
        if hanging is None:
            return self._by_calls(self._inquiry.kept(self._reports.cause(ranks)))
        self._reports.overrule(now, hanging)
        return self._reports.cause(ranks)

    def _by_calls(self, failure: Failure) -> Failure:
        """A failure that says only that a wait was in vain, with what the ranks' last calls tell."""
        own = self._told.get(failure.rank) if failure.rank is not None else None
        if own is None or own.steps != failure.step or not only_misses_a_peer(failure):
            return failure  # the rank has made steps since it has told
        from algorun.control.hang.calls import mismatch  # no start needs it

        living = {stack.rank: stack for stack in self._inquiry.stacks} if self._inquiry is not None else {}
        found = mismatch({rank: stack.calls for rank, stack in (self._told | living).items() if stack.calls})
        if found is None:
            return failure
        cause = self._reports.of_rank(found.ranks[0]) or failure
        return replace(cause, message=f"{cause.message}; {found.text}")

    def complete(self, failure: Failure) -> Failure:
        """The root cause with what else was reported."""
        whole = self._reports.complete(failure)
        return self._memory_kills.explain(whole) if self._memory_kills is not None else whole

    def hosts_of(self, failure: Failure) -> frozenset[str]:
        """The hosts that have reported this very failure, its own among them."""
        return self._reports.hosts_of(failure)

    def clear(self) -> None:
        """Another attempt follows."""
        self._inquiry, self._not_before = None, -math.inf
        self._told.clear()
        self._reports.clear()
        self._memory_kills = None

    def close(self) -> None:
        """The job has its verdict."""
        self._reports.deadline = self._inquiry = None

    def _ask(
        self,
        now: float,
        idle_s: float = 0.0,
        in_vain: Sequence[Failure] = (),
        *,
        silent: bool = False,
        worker: str = "",
    ) -> AskStacks:
        from .inquiry import Inquiry  # no start needs it

        self._inquiry, self._reports.deadline = Inquiry(now, idle_s, in_vain, silent=silent, worker=worker), None
        return AskStacks()
