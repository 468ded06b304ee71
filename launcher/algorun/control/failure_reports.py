"""The failures that hosts have reported in an attempt, and how long others may still report an earlier one. Pure.

Ranks that have left with 0 are known as well. Where every failure only names a peer or a wait, the first of these
ranks is the one that was missed.
"""

from __future__ import annotations

from dataclasses import replace

from .failure import Failure, RankLeft
from .peer_errors import Distance
from .root_choice import blame_left_rank, choose, only_misses_a_peer, with_others

MOST_FAILURES = 10_000  # kept; more say nothing new
# More time for the end of a rank that others miss: its connections close first, and then its interpreter unloads torch
# (0.7 s of CPU, several seconds on a busy machine). Only its exit status says that it has left, and with which code.
MISSED_S = 3.0


class FailureReports:
    """Reported failures by host and rank. `deadline` is the end of the window, None while none is open."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._reported: dict[tuple[str, int | None], tuple[float, Failure]] = {}
        self._left: dict[tuple[str, int], tuple[float, RankLeft]] = {}
        self._longer = False
        self.deadline: float | None = None

    def __bool__(self) -> bool:
        return bool(self._reported)

    def add(self, now: float, failure: Failure) -> bool:
        """Keeps a failure; False where it is known, and only brings the exit code of a rank that has raised."""
        key = (failure.host, failure.rank)
        if key in self._reported:
            onset, known = self._reported[key]
            if failure.rank is not None:
                self._reported[key] = (onset, replace(known, code=failure.code))
            return False
        if len(self._reported) < MOST_FAILURES:
            self.overrule(now, failure)
        return True

    def overrule(self, now: float, failure: Failure) -> None:
        """Keeps a failure in place of what its rank itself has reported."""
        self._reported[failure.host, failure.rank] = (now - max(0.0, failure.age_s), failure)
        self._end_early(now)

    def rank_left(self, now: float, left: RankLeft) -> None:
        """Keeps a rank that has left with 0."""
        if len(self._left) < MOST_FAILURES:
            self._left.setdefault((left.host, left.rank), (now, left))
            self._end_early(now)

    def left_ranks(self) -> list[RankLeft]:
        """The ranks that have left with 0, the first one first."""
        return [left for _, left in sorted(self._left.values(), key=lambda pair: pair[0])]

    def open(self, now: float) -> None:
        """From now on others have their time; a window that is open stays."""
        if self.deadline is None:
            self.deadline = now + self._window_s

    def due(self, now: float, ranks: int) -> bool:
        """True once the failures may be judged. `ranks` is how many the job has.

        Where nothing explains them, ranks of which nothing is known have more time to end.
        """
        if self.deadline is None or now < self.deadline:
            return False
        unknown = ranks - len(self._reported) - len(self._left)
        if self._longer or unknown <= 0 or self._explained:
            return True
        self._longer, self.deadline = True, now + MISSED_S
        return False

    def root_cause(self, ranks: int) -> Failure:
        """The failure that began it all, by what is known now. `ranks` is how many the job has."""
        first, left = choose(self._reported.values()), self.left_ranks()
        return blame_left_rank(left, ranks, first) if left and only_misses_a_peer(first) else first

    def in_vain(self, ranks: int) -> list[Failure]:
        """The ranks that have only waited in vain, the first one first: another rank, which still lives, holds them up.

        [] where a failure explains itself, a rank has left with 0, or none of the job's `ranks` can be alive.
        """
        if self._left or len(self._reported) >= ranks or not only_misses_a_peer(choose(self._reported.values())):
            return []
        waited = [(at, each) for at, each in self._reported.values() if each.distance is Distance.WAITED]
        return [each for _, each in sorted(waited, key=lambda pair: (pair[0], pair[1].rank or 0))]

    def complete(self, failure: Failure) -> Failure:
        """The root cause with what else was reported."""
        return with_others(failure, self._reported.values())

    def clear(self) -> None:
        """Another attempt follows."""
        self._reported.clear()
        self._left.clear()
        self._longer, self.deadline = False, None

    @property
    def _explained(self) -> bool:
        return bool(self._left) or not only_misses_a_peer(choose(self._reported.values()))

    def _end_early(self, now: float) -> None:
        """Ends a longer window where the rank that the others miss has ended."""
        if self._longer and self._explained:
            self.deadline = now
