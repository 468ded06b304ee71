"""Which of several failures is the root cause, and what its text says of the others. Pure functions.

root_cause.py calls them when the time to report failures is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from .failure import ALSO, THEN, Failure, RankLeft, how

MOST_OTHERS = 8  # failures beside the root cause that are named
LONGEST_OTHER = 200  # characters of each
ADVICE = "; fix: "  # as UserError writes it, the launcher's and the training package's

EVEN = (
    "all ranks must take part until the last collective: look for data that is split unevenly, and for a return or"
    " sys.exit(0) that only some ranks reach"
)


def choose(reported: Iterable[tuple[float, Failure]]) -> Failure:
    """The failure to blame, of (onset, failure) pairs with onsets on one clock.

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
    """True for a rank that only says that it has missed another one. An engine is no rank.

    An error that says what to do explains itself: a library of ours knows why a peer is missing.
    """
    return failure.secondary and failure.rank is not None and ADVICE not in failure.message


def blame_left_rank(left: Sequence[RankLeft], ranks: int, seen: Failure) -> Failure:
    """The root cause where a rank that others needed has left with 0. `left` holds such ranks, the first one first.

    `seen` is the trouble of a rank that needed it: code and words stay those of `seen`, as nothing else has any. `ranks`
    is the number of all.
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
        message=f"rank {seen.rank} on {seen.host}{ended}: {seen.message}",
        step=first.step,
        how_left=f"{first.how}{also} while {still} {'rank' if still == 1 else 'ranks'} still {doing}",
        hint=f"{EVEN}; {seen.hint}" if seen.hint else EVEN,
    )


def with_others(first: Failure, reported: Iterable[tuple[float, Failure]]) -> Failure:
    """The root cause with what else was reported, a short line each: first what may be a cause, then consequences.

    `user_text` is that of the root cause's host, else of the first host that has one.
    """
    ordered = sorted(reported, key=lambda pair: (pair[1].distance, pair[0]))
    rest = [each for _, each in ordered if (each.host, each.rank) != (first.host, first.rank)]
    same = (first.kind, first.code, first.message)
    ranks = first.rank is not None
    equal = [each for each in rest if ranks == (each.rank is not None) and (each.kind, each.code, each.message) == same]
    named = [each for each in rest if each not in equal]
    lines = []
    if equal:
        alike = ", ".join(str(each.rank) if ranks else each.host for each in equal[:MOST_OTHERS])
        more = ", .." if len(equal) > MOST_OTHERS else ""
        lines.append(f"{ALSO}the same on {len(equal)} more: {'rank ' if ranks else ''}{alike}{more}")
    for each in named[:MOST_OTHERS]:
        line = (THEN if each.secondary else ALSO) + replace(each, attempts=first.attempts).headline()
        lines.append(line[:LONGEST_OTHER])
    if len(named) > MOST_OTHERS:
        lines.append(f"{THEN}{len(named) - MOST_OTHERS} more")
    near = sorted((first, *rest), key=lambda each: each.host != first.host)
    user_text = next((each.user_text for each in near if each.user_text), "")
    return replace(first, others="\n".join(lines), user_text=user_text)
