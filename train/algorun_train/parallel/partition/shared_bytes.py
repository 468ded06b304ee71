"""Bytes of shared weights: every segment that uses one counts it, a stage with several such segments has it once."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence

from .costs import SegmentProfile


class SharedBytes:
    """The shared weights of a model's segments.

    `repeats` are (segment, next segment that uses the same weight, bytes of the weight). A weight used in segments 2 and 7
    is counted in both. If one stage has both segments, subtract these bytes once.
    """

    def __init__(self, segments: Sequence[SegmentProfile]) -> None:
        self._users: dict[str, list[int]] = {}
        self._sizes: dict[str, int] = {}
        for number, segment in enumerate(segments):
            for name, size in segment.shared:
                self._users.setdefault(name, []).append(number)
                self._sizes[name] = size
        self.repeats = sorted(
            (one, two, self._sizes[name])
            for name, users in self._users.items()
            for one, two in itertools.pairwise(users)
        )

    def counted_twice(self, begin: int, end: int) -> list[int]:
        """Bytes that a stage of segments begin .. end - 1 has to subtract, one item per repeat."""
        return [size for one, two, size in self.repeats if begin <= one and two < end]

    def of_stages(self, begins: Sequence[int]) -> Iterator[tuple[str, list[int], int]]:
        """Each weight that several stages use: its name, these stages, its bytes."""
        for name, users in self._users.items():
            stages = sorted({bisect.bisect_right(begins, user) - 1 for user in users})
            if len(stages) > 1:
                yield name, stages, self._sizes[name]
