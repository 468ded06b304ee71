"""What a rank has done so far, as its host reports it. Pure."""

from __future__ import annotations

from algorun.common.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankTimes:
    """What one rank has done until `at` (seconds of its host's clock) in this attempt.

    `group`: ranks of one number do the same work. `activities`: seconds in the order of timing.activities.NAMES. `queued`:
    seconds in which the rank was ready to run and no core was free; 0 where that is not known.
    """

    rank: int
    group: int
    steps: int
    at: float
    activities: tuple[float, ...]
    queued: float = 0.0
