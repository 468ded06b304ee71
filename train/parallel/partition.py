"""Partition: which consecutive segments of a model each pipeline stage gets. Costs in, decision out; nothing is run."""

from collections.abc import Sequence

from ..errors import UserError
from .memory import Memory
from .partitioner import Decision, Partitioner, Segment
from .search import Begins

__all__ = ["MIB", "Decision", "Memory", "Partitioner", "Segment", "even", "smallest", "solve"]

MOST_RANKS = 128  # that a refusal looks for when the model does not fit
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
    if optimize not in ("speed", "memory"):
        raise UserError(f"option --optimize: {optimize!r}; allowed: speed, memory; fix: choose one of them")
    partitioner = Partitioner(segments, ranks, chunks, microbatches, schedule, memory, send_s)
    found = partitioner.solve(optimize, limit_bytes)
    if found is not None:
        return found
    assert limit_bytes is not None  # without one every cut will do
    limit = f"{limit_bytes / MIB:.4g} MiB"
    alone = partitioner.too_large(limit_bytes)
    if alone:
        raise UserError(
            f"the model does not fit: segment {alone[0].name} alone needs {alone[1] / MIB:.4g} MiB; allowed: {limit} "
            "per rank; fix: smaller microbatches, or a higher limit"
        )
    enough = smallest(segments, ranks + 1, chunks, microbatches, schedule, limit_bytes, memory)
    fix = f"use {enough} ranks, where it fits" if enough else "smaller microbatches, or a higher limit"
    raise UserError(
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
) -> int | None:
    """The least number of pipeline ranks, from `ranks` on, with which a partition within the limit is found."""
    for count in range(ranks, min(len(segments) // chunks, MOST_RANKS) + 1):
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
