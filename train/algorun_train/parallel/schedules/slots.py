"""What every rank computes, in which order, for each schedule. Pure; written from the papers and checked against torch.

Each function gives one rank's slots: (kind, stage). Microbatches of a kind and stage run in order 0, 1, 2, .., so the
slots say everything and `numbered` adds the microbatches.

Sources: GPipe (Huang et al. 2019), 1F1B (PipeDream-Flush, Narayanan et al. 2021), interleaved 1F1B (Megatron-LM,
Narayanan et al. 2021), zero bubble ZB1P and ZB-V (Qi et al. 2023), DualPipeV (DeepSeek 2024).
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

Slot = tuple[str, int]


class Action(NamedTuple):
    """One computation of a rank."""

    kind: str
    """F forward; B whole backward; I gradient of the input; W gradient of the weights (I and W together are B)"""
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch} stage {self.stage}"


def numbered(slots: Iterable[Slot], microbatches: int) -> tuple[Action, ...]:
    """The slots with their microbatches; what is beyond the last microbatch is dropped."""
    seen: Counter[Slot] = Counter()
    actions = []
    for kind, stage in slots:
        number = seen["I" if kind == "B" else kind, stage]
        seen.update([("I", stage), ("W", stage)] if kind == "B" else [(kind, stage)])
        if number < microbatches:
            actions.append(Action(kind, stage, number))
    return tuple(actions)


def gpipe(rank: int, ranks: int, chunks: int, microbatches: int) -> Iterator[Slot]:
    """All forwards, then all backwards."""
    yield from ((kind, rank) for kind in "F" * microbatches + "B" * microbatches)


def one_forward_one_backward(rank: int, ranks: int, chunks: int, microbatches: int) -> Iterator[Slot]:
    """Stage s forwards S - s microbatches ahead, and from then on each forward waits for a backward."""
    ahead = min(microbatches, ranks - rank)
    yield from ((kind, rank) for kind in "F" * ahead + "BF" * (microbatches - ahead) + "B" * ahead)


def _round(ranks: int, microbatches: int) -> int:
    """Microbatches that one stage takes before the rank turns to its next stage."""
    return microbatches // max(1, microbatches // ranks)


def interleaved(rank: int, ranks: int, chunks: int, microbatches: int) -> Iterator[Slot]:
    """1F1B over several stages a rank; two microbatches ahead for every rank that follows."""
    turn, total = _round(ranks, microbatches), chunks * microbatches
    ahead = min((chunks - 1) * turn + 2 * (ranks - 1 - rank), total)
    forwards = [k // turn % chunks * ranks + rank for k in range(total)]
    backwards = [(chunks - 1 - k // turn % chunks) * ranks + rank for k in range(total)]
    yield from (("F", stage) for stage in forwards[:ahead])
    for k, stage in enumerate(backwards):
        if ahead + k < total:
            yield "F", forwards[ahead + k]
        yield "B", stage


def zero_bubble(rank: int, ranks: int, chunks: int, microbatches: int) -> Iterator[Slot]:
    """Interleaved with only one microbatch ahead per rank that follows; weight gradients wait for `rank` others."""
    turn, total = _round(ranks, microbatches), chunks * microbatches
    ahead = min((chunks - 1) * turn + ranks - 1 - rank, total)
    forwards = [k // turn % chunks * ranks + rank for k in range(total)]
    backwards = [(chunks - 1 - k // turn % chunks) * ranks + rank for k in range(total)]
    yield from (("F", stage) for stage in forwards[:ahead])
    weights = deque[int]()
    for k, stage in enumerate(backwards):
        if ahead + k < total:
            yield "F", forwards[ahead + k]
        yield "I", stage
        weights.append(stage)
        if k >= rank:
            yield "W", weights.popleft()
    yield from (("W", stage) for stage in weights)


def zbv(rank: int, ranks: int, chunks: int, microbatches: int) -> Iterator[Slot]:
    """ZB-V: rank r holds stages r and 2P-1-r, so the last stage's gradients are on the first rank at once.

    The order is that of at least 2P-1 microbatches; with fewer, `numbered` drops those that do not exist.
    """
    down, up = rank, 2 * ranks - 1 - rank
    enough = max(2 * ranks - 1, microbatches)
    yield from [("F", down)] * (2 * (ranks - rank) - 1)
    yield from [("F", up), ("F", down)] * rank
    yield from [("F", up), ("I", up), ("W", up)] * (ranks - rank)
    downs, ups = 2 * ranks - 1 - rank, ranks  # forwards done so far
    while ups < downs or downs < enough:
        if downs < enough:
            yield "F", down
            downs += 1
        yield from [("I", down), ("W", down), ("F", up), ("I", up), ("W", up)]
        ups += 1
    yield from [("I", down), ("I", up)] * rank
    yield from [("I", down), ("W", down)] * (ranks - rank)
    yield from [("W", up)] * rank + [("W", down)] * rank


def dualpipev(rank: int, ranks: int, chunks: int, microbatches: int) -> Iterator[Slot]:
    """DualPipeV: a V like ZB-V's; a forward of one stage is paired with a backward of the other.

    torch computes the two one after the other and sends both results after the second, so that a step takes somewhat
    longer than the simulation says.
    """
    down, up = rank, 2 * ranks - 1 - rank
    after = ranks - rank - 1  # ranks that follow
    yield from [("F", down)] * (2 * after)
    yield from [("F", down), ("F", up)] * (rank + 1)
    yield from [("I", up), ("W", up), ("F", up)] * after
    yield from [("F", down), ("B", up), ("F", up), ("B", down)] * (microbatches - 2 * ranks + rank + 1)
    yield from [("B", up), ("F", up), ("B", down)] * after
    # The ramp down: from its middle on, weight gradients are put off to fill the waits.
    weights = deque[int]()
    for k in range(2 * (rank + 1) + after):
        stage = up if k % 2 == 0 and k < 2 * (rank + 1) else down
        if k >= 2 * (rank + 1) and weights:
            yield "W", weights.popleft()
        split = k > rank
        yield "I" if split else "B", stage
        if split:
            weights.append(stage)
    yield from (("W", stage) for stage in weights)
