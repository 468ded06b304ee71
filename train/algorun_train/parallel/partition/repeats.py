"""Weights that several segments use: each of them counts such a weight, a stage that has several of them holds it once."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .memory import Memory
    from .partitioner import Segment


class Repeats:
    """What the segments' `shared` say. `pairs` are (segment, next segment that uses the same weight, bytes of it): a
    stage with both has counted these bytes once too often."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._users: dict[str, list[int]] = {}
        self._sizes: dict[str, int] = {}
        for number, segment in enumerate(segments):
            for name, size in segment.shared:
                self._users.setdefault(name, []).append(number)
                self._sizes[name] = size
        self.pairs = sorted(
            (one, two, self._sizes[name])
            for name, users in self._users.items()
            for one, two in itertools.pairwise(users)
        )

    def within(self, begin: int, end: int) -> list[int]:
        """Bytes that segments begin .. end - 1 count too often, weight by weight."""
        return [size for one, two, size in self.pairs if begin <= one and two < end]

    def once(self, states: Sequence[int], memory: Memory) -> list[int]:
        """`states` of the segments, with each weight at the first of its users alone: no stage can need less."""
        found = list(states)
        for _, two, size in self.pairs:
            found[two] -= memory.states(size)
        return found

    def of_stages(self, begins: Sequence[int]) -> Iterator[tuple[str, list[int], int]]:
        """Each weight that several stages use: its name, these stages, its bytes."""
        for name, users in self._users.items():
            stages = sorted({bisect.bisect_right(begins, user) - 1 for user in users})
            if len(stages) > 1:
                yield name, stages, self._sizes[name]
