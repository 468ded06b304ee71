"""The first value of a training that is not finite: a loss, a gradient or a weight. Pure.

Each rank tells the first one that it has found (inside/rank_nonfinite.py). The hub waits a moment for other ranks, because
a rank with a gradient that was averaged over all ranks may tell before the one whose loss has begun it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from algorun.common.fast_dataclasses import dataclass, replace

from .failure import Failure

LOSS, GRADIENT, WEIGHT = range(3)  # in the order in which a step makes them; rank_nonfinite has the same
WINDOW_S = 2.0  # for other ranks to tell: all tell of one step, but those on GPUs some steps later
MOST_NAMED = 8  # ranks in a line
MOST_RANKS = 10_000  # that are kept
ENDS = "end"  # ALGORUN_NONFINITE
AVERAGED = "gradients are averaged over ranks before they can be looked at, so any of these may have begun it"


@dataclass(frozen=True, slots=True)
class NonFiniteValue:
    """What one rank has found.

    `of`: LOSS, GRADIENT or WEIGHT. `earliest` is below `step` where a weight may have become so in a step between. `name` is
    the first of `names` parameters in which it was found, of `total` that were looked at. `place`: where its batch is in the
    data. `at`: when all was finite, by the monotonic clock of
    its host. `checkpoint`: the newest one from before, "" without one. `mode`: the
    rank's ALGORUN_NONFINITE.
    """

    rank: int
    step: int
    earliest: int
    of: int
    value: str
    name: str
    names: int
    total: int
    place: str
    at: float
    mode: str
    host: str = ""
    attempt: int = 0
    checkpoint: str = ""

    @property
    def key(self) -> tuple[int, int]:
        """What came first is less."""
        return self.step, self.of

    @property
    def what(self) -> str:
        """`the loss is nan`, `the gradient of a.weight is inf`."""
        if self.of == LOSS:
            unless = f", unless a weight has become so in step {self.earliest}" if self.earliest < self.step else ""
            return f"the loss is {self.value}{unless}"
        more = f" (and of {self.names - 1} more of {self.total})" if self.names > 1 else ""
        if self.of == GRADIENT:
            return f"the gradient of {self.name}{more} is {self.value}"
        when = f"between steps {self.earliest} and {self.step}" if self.earliest < self.step else f"in step {self.step}"
        return f"the weight {self.name}{more} has become {self.value} {when if self.step else 'before the first step'}"


def line(found: Sequence[NonFiniteValue]) -> str:
    """One line about the first value of all that ranks have found, at least one."""
    first = min(found, key=lambda each: (each.key, each.rank))
    same = sorted(each.rank for each in found if each.key == first.key)
    more = f" and {len(same) - MOST_NAMED} more" if len(same) > MOST_NAMED else ""
    who = f"rank {first.rank} on {first.host}"
    if len(same) > 1:
        who = f"ranks {', '.join(map(str, same[:MOST_NAMED]))}{more} at once"
    place = f" ({first.place})" if first.place and len(same) == 1 else ""
    averaged = f"; {AVERAGED}" if len(same) > 1 and first.of == GRADIENT else ""
    stamps = [each.checkpoint for each in found if each.checkpoint]
    kept = f"; the newest checkpoint from before it is {stamps[0]}" if stamps else ""  # other hosts may have one
    return f"first value that is not finite: step {first.step}, {who}: {first.what}{place}{averaged}{kept}"


class NonFiniteReports:
    """What the ranks of the attempt that runs have found. `deadline`: when it is told."""

    def __init__(self) -> None:
        self._found: dict[int, NonFiniteValue] = {}
        self._told = False
        self._attempt = 0
        self.deadline = math.inf

    def heard(self, now: float, value: NonFiniteValue) -> None:
        """A rank of the attempt that runs has found something; its first counts."""
        if value.attempt != self._attempt:
            self._found, self._told, self._attempt = {}, False, value.attempt
        if self._told or len(self._found) >= MOST_RANKS:
            return
        self._found.setdefault(value.rank, value)
        self.deadline = min(self.deadline, now + WINDOW_S)

    def take(self) -> str:
        """The line, once; "" where there is none, or it was told."""
        self.deadline = math.inf
        if self._told or not self._found:
            return ""
        self._told = True
        return line(list(self._found.values()))

    def failure(self) -> Failure | None:
        """The failure that the job ends with because of it; None where it may go on."""
        first = min(self._found.values(), key=lambda each: (each.key, each.rank), default=None)
        if first is None or first.mode != ENDS:
            return None
        text = f"{line(list(self._found.values()))} (ALGORUN_NONFINITE=end)"
        return Failure("nonfinite", first.host, 1, text, first.rank, attempt=first.attempt, step=first.step)

    def explain(self, failure: Failure) -> Failure:
        """A failure of the attempt, with the line as its hint if it has none."""
        if failure.hint or failure.kind == "nonfinite" or not self._found or failure.attempt != self._attempt:
            return failure
        return replace(failure, hint=line(list(self._found.values())))
