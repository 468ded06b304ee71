"""The failures that hosts have reported in an attempt, and how long others may still report an earlier one. Pure.

Ranks that have left with 0 are kept as well. Where every failure only names a peer or a wait, the first of these ranks
is the one that the others missed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from algorun.common.fast_dataclasses import replace
from algorun.control.failures import peer_errors
from algorun.control.failures.failure import Failure, RankLeft, how, with_others
from algorun.control.failures.peer_errors import Distance

MOST_FAILURES = 10_000  # kept; more say nothing new
# More time for a rank that others miss to end. Its connections close first, then its interpreter unloads torch (0.7 s of
# CPU, several seconds on a busy machine), and only then its exit status says that it has left, and with which code.
MISSED_S = 3.0
EVEN = (
    "all ranks must take part until the last collective: look for data that is split unevenly, and for a return or"
    " sys.exit(0) that only some ranks reach"
)


def likeliest_cause(reported: Iterable[tuple[float, Failure]]) -> Failure:
    """The likeliest root cause, of (onset, failure) pairs with onsets on one clock.

    1. A failure that only names a vanished peer, or a wait in vain, comes after every other (`Failure.distance`). So a
       lost host beats the exceptions of ranks that were connected to it.
    2. Of equals, the one with the earliest onset.
    3. A crash beats a silent exit: the rank that calls MPI_Abort over a crashed peer can be reported before the peer.
    """
    ordered = sorted(reported, key=lambda pair: (pair[1].distance, pair[0]))
    first = ordered[0][1]
    if first.silent:
        return next((failure for _, failure in ordered if failure.crash), first)
    return first


def only_misses_a_peer(failure: Failure) -> bool:
    """True for the failure of a rank that only says that it missed another one. An engine is no rank.

    An error that says what to do explains itself: a library of ours knows why a peer is missing.
    """
    return failure.secondary and failure.rank is not None and not failure.explains_itself


def missed_by_mpi(left: Sequence[RankLeft], first: Failure, reported: Sequence[Failure]) -> list[RankLeft]:
    """The ranks that have left, if MPI has ended the others because one had left without MPI_Finalize; that one is the first.

    The engine says so: a rank that MPI has ended has no words of its own.
    """
    if not first.silent and first.kind != "engine":
        return []
    for each in reported:
        if each.kind == "engine" and peer_errors.says(peer_errors.MPI_LEFT, each.traceback):
            named = re.search(peer_errors.IMPROPERLY, each.traceback)
            return sorted(left, key=lambda rank: named is not None and rank.rank != int(named[1]))
    return []


def left_rank_as_cause(left: Sequence[RankLeft], ranks: int, seen: Failure) -> Failure:
    """The root cause where a rank that others needed has left with 0. `left` holds such ranks, the first one first.

    `seen` is the failure of a rank that needed it; the result keeps its code and words. `ranks` is the number of all
    ranks of the job.
    """
    first, more = left[0], len(left) - 1
    also = f", as did {more} {'other' if more == 1 else 'others'}," if more else ""
    still = max(1, ranks - len(left))
    doing = "trained" if first.step else "ran"  # where nobody counts steps it may be anything
    ended = "" if seen.kind == "hang" else f", {how(seen.code)}"
    return replace(
        seen,
        kind=seen.kind if seen.kind == "hang" else "left",
        host=first.host,
        rank=first.rank,
        message=f"{'' if seen.rank is None else f'rank {seen.rank} on '}{seen.host}{ended}: {seen.message}",
        step=first.step,
        how_left=f"{first.how}{also} while {still} {'rank' if still == 1 else 'ranks'} still {doing}",
        hint=f"{EVEN}; {seen.hint}" if seen.hint else EVEN,
    )


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
        """Keeps a failure. False where it is known: then it only brings the exit code of a rank that has raised."""
        key = (failure.host, failure.rank)
        if key in self._reported:
            onset, known = self._reported[key]
            if failure.rank is not None:
                self._reported[key] = (onset, replace(known, code=failure.code))
            return False
        if len(self._reported) < MOST_FAILURES:
            self.overrule(now, failure)
        return True

    def of_rank(self, rank: int) -> Failure | None:
        """What a rank has reported."""
        return next((each for _, each in self._reported.values() if each.rank == rank), None)

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
        """Opens the window, unless it is open."""
        if self.deadline is None:
            self.deadline = now + self._window_s

    def due(self, now: float, ranks: int) -> bool:
        """True once the failures may be judged. `ranks` is how many the job has.

        Where nothing explains the failures, ranks that have not reported anything have more time to end.
        """
        if self.deadline is None or now < self.deadline:
            return False
        unknown = ranks - len(self._reported) - len(self._left)
        if self._longer or unknown <= 0 or self._explained:
            return True
        self._longer, self.deadline = True, now + MISSED_S
        return False

    def cause(self, ranks: int) -> Failure:
        """The failure that the job ends with, by what is known now. `ranks` is how many the job has."""
        first, left = likeliest_cause(self._reported.values()), self.left_ranks()
        if left and not only_misses_a_peer(first):
            left = missed_by_mpi(left, first, [each for _, each in self._reported.values()])
        return left_rank_as_cause(left, ranks, first) if left else first

    def in_vain(self, ranks: int) -> list[Failure]:
        """The ranks that have waited in vain for a rank that still lives, the first one first.

        [] where a failure explains itself, a rank has left with 0, or none of the job's `ranks` can be alive.
        """
        if (
            self._left
            or len(self._reported) >= ranks
            or not only_misses_a_peer(likeliest_cause(self._reported.values()))
        ):
            return []
        waited = [(at, each) for at, each in self._reported.values() if each.distance is Distance.WAITED]
        return [each for _, each in sorted(waited, key=lambda pair: (pair[0], pair[1].rank or 0))]

    def complete(self, failure: Failure) -> Failure:
        """The root cause with what else was reported."""
        return with_others(failure, self._reported.values())

    def hosts_of(self, failure: Failure) -> frozenset[str]:
        """The hosts that have reported this very failure, its own among them."""
        from algorun.control.failures.same_failure import alike  # no start needs it

        reported = (each for _, each in self._reported.values())
        return frozenset((failure.host, *(each.host for each in reported if alike(each, failure))))

    def clear(self) -> None:
        """Another attempt follows."""
        self._reported.clear()
        self._left.clear()
        self._longer, self.deadline = False, None

    @property
    def _explained(self) -> bool:
        return bool(self._left) or not only_misses_a_peer(likeliest_cause(self._reported.values()))

    def _end_early(self, now: float) -> None:
        """Ends a longer window once something explains the failures."""
        if self._longer and self._explained:
            self.deadline = now
