"""Which ranks make the others wait, judged by what each one's time is spent on. Pure.

Ranks that train together make the same steps in the same time. Whoever is slow works all of that time; the others work less
and wait in `exchange`. So the time that a rank works itself is compared with that of the others in its group.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from algorun.common.fast_dataclasses import dataclass

from .activities import NAMES
from .rank_times import RankTimes

LEAST_STEPS = 3  # of a rank between two reports; with fewer, what is measured is one step's accident
LEAST_EXCESS = 0.1  # of the whole time: what a slow rank works longer than the others
MORE_QUEUED = 2.0  # times the others' waits for a core: with less, a rank is not slow because of its own
UNEQUAL_STEPS = 0.1  # of the steps: ranks that differ by more do not train together
WAITING = "exchange"  # no work, but waiting for the work of others
NOT_OWN = (WAITING, "evaluation")  # an evaluation is seen as a whole, with the waiting in it
OTHER = "what no activity names"
CORE = "waiting for a core"  # within other parts: the rank could run, and this host's cores did something else


@dataclass(frozen=True, slots=True)
class Slow:
    """Ranks of one group that the others wait for: their own time over that of the others, what most of the excess is
    spent on, and the share (0 to 1) of the others' time in which they wait for these."""

    ranks: tuple[int, ...]
    factor: float
    activity: str
    waited: float


@dataclass(frozen=True, slots=True)
class Excess:
    """What one rank spends more on an activity than the median of its group, as a share (0 to 1) of the time."""

    rank: int
    activity: str
    share: float


@dataclass(frozen=True, slots=True)
class Share:
    """What a rank has done between two reports, each as a share of that time."""

    rank: int
    steps: int
    own: float
    exchange: float
    parts: Mapping[str, float]  # of its own time
    queued: float


def slow_ranks(before: Mapping[int, RankTimes], after: Mapping[int, RankTimes]) -> Slow | None:
    """Who was slow between two reports of all ranks: of all groups the one with the highest factor; None if nobody was."""
    found = [slow for slow in map(_slow_of_group, _groups(before, after)) if slow is not None]
    return max(found, key=lambda slow: slow.factor, default=None)


def excesses(before: Mapping[int, RankTimes], after: Mapping[int, RankTimes]) -> list[Excess]:
    """What ranks spend more on than the others of their group between two reports, the most first. No verdict: in every job
    some rank is above the others."""
    found = []
    for shares in _groups(before, after):
        for each, (activity, own) in itertools.product(shares, _usual_parts(shares).items()):
            above = each.parts[activity] - own
            if above > 0:
                found.append(Excess(each.rank, activity, above))
    return sorted(found, key=lambda each: (-each.share, each.rank))


def _usual_parts(shares: Sequence[Share]) -> dict[str, float]:
    """The medians of a group of two and more."""
    return {name: median([each.parts[name] for each in shares]) for name in shares[0].parts} if len(shares) > 1 else {}


def _groups(before: Mapping[int, RankTimes], after: Mapping[int, RankTimes]) -> list[list[Share]]:
    """The groups whose ranks have made steps together, [] where too little was seen of a rank."""
    groups: dict[int, list[Share]] = {}
    for rank, last in after.items():
        share = _share(before[rank], last)
        if share is None:
            return []
        groups.setdefault(last.group, []).append(share)
    return [shares for shares in groups.values() if _together(shares)]


def _together(shares: Sequence[Share]) -> bool:
    most = max(each.steps for each in shares)
    return most - min(each.steps for each in shares) <= max(1, UNEQUAL_STEPS * most)


def _share(before: RankTimes, after: RankTimes) -> Share | None:
    """None where too little was seen: the rank's first step is not over, or it has made too few."""
    whole, steps = after.at - before.at, after.steps - before.steps
    if whole <= 0 or not before.steps or steps < LEAST_STEPS:
        return None
    spent = {name: (b - a) / whole for name, a, b in zip(NAMES, before.activities, after.activities, strict=True)}
    parts = {name: share for name, share in spent.items() if name not in NOT_OWN}
    parts[OTHER] = max(0.0, 1 - sum(spent.values()))
    queued = max(0.0, after.queued - before.queued) / whole
    return Share(after.rank, steps, sum(parts.values()), spent[WAITING], parts, queued)


def _slow_of_group(shares: Sequence[Share]) -> Slow | None:
    if len(shares) < 2:
        return None
    slowest = max(shares, key=lambda each: each.own)
    usual = median([each.own for each in shares if each is not slowest])
    late = [each for each in shares if each.own - usual >= LEAST_EXCESS]
    others = [each for each in shares if each.own - usual < LEAST_EXCESS]
    if not late or not others or not usual:
        return None
    own = median([each.own for each in late])
    waited = median([each.exchange for each in others]) - median([each.exchange for each in late])
    if waited < (own - usual) / 2:  # the others do something else meanwhile, so nobody waits
        return None
    excess = {
        name: median([e.parts[name] for e in late]) - median([e.parts[name] for e in others]) for name in late[0].parts
    }
    activity = max(excess, key=lambda name: excess[name])
    queued, usually_queued = (median([each.queued for each in shares]) for shares in (late, others))
    if queued - usually_queued >= (own - usual) / 2:
        if (
            queued < MORE_QUEUED * usually_queued
        ):  # there are too few cores for all ranks, and chance decides who waits longer
            return None
        activity = CORE
    return Slow(tuple(sorted(each.rank for each in late)), own / usual, activity, waited)


def median(values: Sequence[float]) -> float:
    """The median of at least one value."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2
