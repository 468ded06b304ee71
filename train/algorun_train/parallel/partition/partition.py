"""Partition: which consecutive segments of a model each pipeline stage gets. Costs in, decision out; nothing is run."""

import time
from collections.abc import Sequence

from algorun_train.errors import UserError
from algorun_train.parallel import schedules

from .bound import Bound, known_in_flight
from .memory import Memory
from .partitioner import Decision, Partitioner, Segment
from .repeats import Repeats
from .search import Begins

__all__ = ["MIB", "Decision", "Memory", "Partitioner", "Segment", "even", "refusal", "smallest", "solve"]

MOST_RANKS = 128  # that a refusal looks for when the model does not fit
PATIENCE_S = 3.0  # for that search: the other ranks wait for the refusal
MIB = 2**20


def solve(
    segments: Sequence[Segment],
    ranks: int,
    chunks: int,
    microbatches: int,
    schedule: str,
    optimize: str = "speed",
    limit_bytes: int | None = None,
    memory: Memory = Memory(),  # noqa: B008 (frozen)
    send_s: float = 0.0,
) -> Decision:
    """The partition with the shortest step ("speed"), or with the smallest largest rank ("memory"; ties by time).

    Exact for GPipe and 1F1B, of which speed means the least sum t_s + (M - 1) max t_s. With several stages a rank it
    is the best of all cuts where those are few, else what a search on the simulated step finds. UserError where the
    schedule forbids the numbers, there are too few segments, or no partition within `limit_bytes` a rank is found.
    """
    found = Partitioner(segments, ranks, chunks, microbatches, schedule, memory, send_s).solve(optimize, limit_bytes)
    if found is None:
        assert limit_bytes is not None  # without one every cut will do
        raise refusal(segments, ranks, chunks, microbatches, schedule, limit_bytes, memory)
    return found


def refusal(
    segments: Sequence[Segment],
    ranks: int,
    chunks: int,
    microbatches: int,
    schedule: str,
    limit_bytes: int,
    memory: Memory = Memory(),  # noqa: B008 (frozen)
) -> UserError:
    """What to say of a model that does not fit: the segment that is too large, or the number of ranks that would do."""
    limit = f"{limit_bytes / MIB:.4g} MiB"
    alone = Partitioner(segments, ranks, chunks, microbatches, schedule, memory).too_large(limit_bytes)
    if alone:
        return UserError(
            f"the model does not fit: segment {alone[0].name} alone needs {alone[1] / MIB:.4g} MiB; allowed: {limit} "
            "per rank; fix: smaller microbatches, or a higher limit"
        )
    try:
        enough = smallest(segments, ranks + 1, chunks, microbatches, schedule, limit_bytes, memory, PATIENCE_S)
        fix = f"use {enough} ranks, where it fits" if enough else "smaller microbatches, or a higher limit"
    except TimeoutError:
        fix = "more ranks, smaller microbatches, or a higher limit"
    return UserError(
        f"the model does not fit {ranks} pipeline ranks with schedule {schedule}; allowed: {limit} per rank; fix: {fix}"
    )


def smallest(
    segments: Sequence[Segment],
    ranks: int,
    chunks: int,
    microbatches: int,
    schedule: str,
    limit_bytes: int,
    memory: Memory = Memory(),  # noqa: B008 (frozen)
    patience_s: float | None = None,
) -> int | None:
    """The least number of pipeline ranks, from `ranks` on, with which a partition within the limit is found.

    TimeoutError where that takes longer than `patience_s` seconds. All numbers are tried: with receive buffers, and
    under schedules whose first stages hold more the more ranks there are, one that fits says nothing of the next.
    """
    begun, most = time.monotonic(), min(len(segments) // chunks, MOST_RANKS)
    states = Repeats(segments).once([memory.states(s.parameter_bytes) for s in segments], memory)
    bound = Bound(states, [s.saved_bytes for s in segments])
    name = schedules.ALIASES.get(schedule, schedule)
    for count in range(max(ranks, bound.ranks(limit_bytes, most)), most + 1):
        known = (1,) * count if memory.recompute else known_in_flight(name, count, microbatches)
        if known and not bound.may_fit(known, limit_bytes):
            continue
        if patience_s is not None and time.monotonic() - begun > patience_s:
            raise TimeoutError(f"{count} ranks and more were not tried")
        try:
            partitioner = Partitioner(segments, count, chunks, microbatches, schedule, memory)
        except UserError:  # the schedule does not allow this number of ranks
            continue
        if partitioner.fits(limit_bytes):
            return count
    return None


def even(segments: int, stages: int) -> Begins:
    """The same number of segments per stage, as near as that goes: what the solver is compared with."""
    return tuple(segments * stage // stages for stage in range(stages))
