"""Which rank called another collective than the others, judged by the last calls of all ranks. Pure.

Calls of one process group are numbered on each rank. Calls of one number belong together, so they must be the same
operation, and for most operations of the same size and type.

A program on a GPU queues calls long before they run, and how far ahead it is says nothing: a rank that prints its loss
queues fewer than the others. So there the group's first call that has not completed on all ranks counts, and who has
queued it.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from algorun.common.fast_dataclasses import dataclass

from .call import CollectiveCall

# Operations to which all ranks must bring equally many numbers of one type. The others may be uneven.
EQUAL = r"_?(all_?reduce|broadcast|reduce|reduce_scatter|all_?gather_(base|into_tensor))"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """`ranks` called something else than `others`, or did not call at all (`absent`). The first of `ranks` is the root cause."""

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    absent: bool
    text: str


def mismatch(calls: Mapping[int, Sequence[CollectiveCall]]) -> Mismatch | None:
    """The first calls that do not fit together, from each rank's calls, oldest first; None where all fit.

    A rank without calls is left out: it does not record. Calls that differ go before a rank that has not called.
    """
    groups = _by_group(calls)
    for of_group in groups.values():
        if found := _different(of_group, calls):
            return found
    waits = [found for of_group in groups.values() if (found := _absent(of_group, calls))]
    if not waits:
        return None
    best = max(waits, key=lambda each: (len(each.others), -len(each.ranks)))
    waiting = {rank for each in waits if each is not best for rank in each.others}
    free = [rank for rank in best.ranks if rank not in waiting]
    if not free or free[0] == best.ranks[0]:
        return best
    of_group = next(group for group in groups.values() if _absent(group, calls) == best)
    return _absent(of_group, calls, free[0])


def _by_group(
    calls: Mapping[int, Sequence[CollectiveCall]],
) -> dict[tuple[str, str], dict[int, dict[int, CollectiveCall]]]:
    """Each group's calls, by rank and number. Groups of other ranks may have the same name."""
    groups: dict[tuple[str, str], dict[int, dict[int, CollectiveCall]]] = {}
    for rank, own in calls.items():
        for call in own:
            groups.setdefault((call.group, call.members), {}).setdefault(rank, {})[call.number] = call
    return groups


def stuck(calls: Mapping[int, Sequence[CollectiveCall]]) -> str:
    """The call that all ranks of a group have made and that has not completed on a GPU, in words; "" where there is none.

    Of several groups the one with the most ranks."""
    best: tuple[int, ...] = ()
    text = ""
    for of_group in _by_group(calls).values():
        number = _waited_for(of_group)
        ranks = tuple(rank for rank, own in of_group.items() if number in own and own[number].state)
        if ranks and len(ranks) == len(of_group) > len(best):
            call = of_group[ranks[0]][number]
            best, text = ranks, f"{_all(ranks)} made {call} ({call.place}), which has not completed"
    return text


def _all(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]} has" if len(ranks) == 1 else f"all its {len(ranks)} ranks have"


def _different(
    of_group: Mapping[int, Mapping[int, CollectiveCall]], calls: Mapping[int, Sequence[CollectiveCall]]
) -> Mismatch | None:
    """The first number at which the group's ranks called different things."""
    for number in sorted({number for own in of_group.values() for number in own}):
        at = {rank: own[number] for rank, own in of_group.items() if number in own}
        kinds = Counter(_kind(call) for call in at.values())
        if len(kinds) < 2:
            continue
        common = max(kinds, key=lambda kind: (kinds[kind], max(rank for rank in at if _kind(at[rank]) == kind)))
        ranks = tuple(sorted(rank for rank in at if _kind(at[rank]) != common))
        others = tuple(sorted(rank for rank in at if _kind(at[rank]) == common))
        own, other = at[ranks[0]], at[others[0]]
        text = f"rank {ranks[0]} called {own}, {_count(others, calls)} called {other} ({own.place})"
        return Mismatch(ranks, others, False, text)
    return None


def _absent(
    of_group: Mapping[int, Mapping[int, CollectiveCall]],
    calls: Mapping[int, Sequence[CollectiveCall]],
    odd: int | None = None,
) -> Mismatch | None:
    """Members that have not made the call that the others wait in; those with the fewest calls first, or `odd`."""
    last = {rank: max(own) for rank, own in of_group.items()}
    number = _waited_for(of_group)
    others = tuple(sorted(rank for rank in last if last[rank] >= number))
    if not others:
        return None
    call = next(
        (of_group[rank][number] for rank in others if number in of_group[rank]), of_group[others[0]][last[others[0]]]
    )
    named = parse(call.members)
    known = named if len(named) < len(calls) else calls  # a range of millions costs no time
    members = {rank for rank in known if rank in named and calls.get(rank)} | set(last)
    ranks = sorted(members - set(others), key=lambda rank: (rank != odd, last.get(rank, 0), rank))
    if not ranks:
        return None
    own = calls[ranks[0]][-1]
    text = f"{_count(others, calls)} called {call} ({call.place}), rank {ranks[0]} did not: its last call is {own}"
    return Mismatch(tuple(ranks), others, True, f"{text} ({own.place})")


def _waited_for(of_group: Mapping[int, Mapping[int, CollectiveCall]]) -> int:
    """The number of the call that the group is in: the newest, or on GPUs the first that has not completed on all ranks."""
    if not any(call.state for own in of_group.values() for call in own.values()):
        return max(max(own) for own in of_group.values())
    open_calls = (
        min((n for n, call in own.items() if not call.is_over), default=max(own) + 1) for own in of_group.values()
    )
    return min(open_calls)


def _count(ranks: Sequence[int], calls: Mapping[int, Sequence[CollectiveCall]]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"{len(ranks)} others" if len(ranks) < len(calls) else f"{len(ranks)} ranks"


def parse(members: str) -> Sequence[int]:
    """The ranks that `members` of a Call names; none where the text is not of that form."""
    if found := re.fullmatch(r"(\d{1,7})-(\d{1,7})(?::(\d{1,7}))?", members):
        return range(int(found[1]), int(found[2]) + 1, max(int(found[3] or 1), 1))
    return [int(each) for each in members.split(",") if re.fullmatch(r"\d{1,7}", each)]


def _kind(call: CollectiveCall) -> tuple[object, ...]:
    """What has to be equal on all ranks."""
    return _kind_of(call.operation, call.shapes, call.dtypes)


@functools.lru_cache(1024)  # 8,000 ranks have 128,000 calls of few kinds
def _kind_of(operation: str, shapes: str, dtypes: str) -> tuple[object, ...]:
    if not re.fullmatch(EQUAL, operation):
        return (operation,)
    return (operation, _sizes(shapes), dtypes)


def _sizes(shapes: str) -> tuple[int, ...]:
    """How many numbers each tensor of `shapes` has."""
    found = []
    for shape in re.findall(r"\[([\d, ]*)\]", shapes):
        size = 1
        for each in re.findall(r"\d{1,18}", shape):
            size *= int(each)
        found.append(size)
    return tuple(found)
