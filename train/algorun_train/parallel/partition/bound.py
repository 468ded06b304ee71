"""A quick answer to whether a model can fit at all, so that the search is left out where it cannot."""

import itertools
from bisect import bisect_right
from collections.abc import Sequence


class Bound:
    """What stages can hold at most of segments that need bytes of `states`, and `saved` bytes per microbatch."""

    def __init__(self, states: Sequence[int], saved: Sequence[int]) -> None:
        self._states = list(itertools.accumulate(states, initial=0))
        self._saved = list(itertools.accumulate(saved, initial=0))

    def ranks(self, limit: int, most: int) -> int:
        """No fewer ranks can hold the states alone; `most` where no number of them can."""
        return min(most, -(-self._states[-1] // limit)) if limit > 0 else most

    def may_fit(self, in_flight: Sequence[int], limit: int) -> bool:
        """False where no cuts keep every stage within `limit` bytes; s holds `in_flight[s]` microbatches.

        Each stage in turn takes all that it can: without buffers nothing can do better. True promises nothing.
        """
        begin, count = 0, len(self._states) - 1
        for many in in_flight:
            room = limit + self._states[begin] + many * self._saved[begin]
            load = lambda end, many=many: self._states[end] + many * self._saved[end]  # noqa: E731
            begin += bisect_right(range(begin + 1, count + 1), room, key=load)
        return begin == count


def known_in_flight(schedule: str, ranks: int, microbatches: int) -> tuple[int, ...] | None:
    """Microbatches that each stage holds, of the schedules that tell it without their orders, which take long."""
    if schedule == "gpipe":
        return (microbatches,) * ranks
    if schedule == "1f1b":
        return tuple(min(microbatches, ranks - stage) for stage in range(ranks))
    return None
