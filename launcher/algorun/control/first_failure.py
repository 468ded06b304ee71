"""The failures that hosts have reported, and the time that others have to report an older one. Pure.

Ranks that have left with 0 are known as well. Where every failure only names a peer or a wait, the first of them is
the peer that was missed.
"""

from __future__ import annotations

from dataclasses import replace

from .failure import Failure, RankLeft, complete, left_early, root
from .peer_errors import Distance

MOST_FAILURES = 10_000  # kept; more say nothing new
# More for the end of a rank that others miss: its connections close first, and then its interpreter unloads torch
# (0.7 s of CPU, several seconds on a busy machine). Only once the exit status is there has it left, with whatever code.
MISSED_S = 3.0
ADVICE = "; fix: "  # as UserError writes it, the launcher's and the training package's


class Blame:
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
        """Keeps a failure; False where it is known, and only tells the exit code of a rank that has raised."""
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
        self._look(now)

    def left(self, now: float, left: RankLeft) -> None:
        """Keeps a rank that has left with 0."""
        if len(self._left) < MOST_FAILURES:
            self._left.setdefault((left.host, left.rank), (now, left))
            self._look(now)

    def gone(self) -> list[RankLeft]:
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

    def root(self, ranks: int) -> Failure:
        """The failure that began it all, by what is known now."""
        first, gone = root(self._reported.values()), self.gone()
        return left_early(gone, ranks, first) if gone and _misses(first) else first

    def in_vain(self, ranks: int) -> list[Failure]:
        """The ranks that have only waited in vain, the first one first: another one, which still lives, holds them up.

        [] where a failure explains itself, a rank has left with 0, or none of the job's `ranks` can be alive.
        """
        if self._left or len(self._reported) >= ranks or not _misses(root(self._reported.values())):
            return []
        waited = [(at, each) for at, each in self._reported.values() if each.distance is Distance.WAITED]
        return [each for _, each in sorted(waited, key=lambda pair: (pair[0], pair[1].rank or 0))]

    def complete(self, failure: Failure) -> Failure:
        """The root with what else was reported."""
        return complete(failure, self._reported.values())

    def clear(self) -> None:
        self._reported.clear()
        self._left.clear()
        self._longer, self.deadline = False, None

    @property
    def _explained(self) -> bool:
        return bool(self._left) or not _misses(root(self._reported.values()))

    def _look(self, now: float) -> None:
        """What was waited for has come."""
        if self._longer and self._explained:
            self.deadline = now


def _misses(failure: Failure) -> bool:
    """True for a rank that only says that it has missed another one. An engine is none.

    An error that says what to do explains itself: a library of ours knows why a peer is missing.
    """
    return failure.secondary and failure.rank is not None and ADVICE not in failure.message
