"""Which layers go to which pipeline stage, within the memory limit of a rank: `choose_stages`. Nothing is run here."""

from __future__ import annotations

from algorun_train.common.errors import UserError
from algorun_train.parallel import schedules

from .cost_model import CostModel
from .costs import Begins, Partition
from .exact_search import ExactSearch, Loads
from .simulated_search import search_by_cost

ACTIONS = 2_000_000  # simulated in one search; about two seconds
EXACT = ("gpipe", "1f1b")  # one stage a rank, step sum t_s + (M - 1) max t_s
MIB = 2**20


def choose_stages(costs: CostModel, optimize: str = "speed", limit_bytes: int | None = None) -> Partition | None:
    """The partition with the shortest step ("speed"), or with the smallest largest rank ("memory", then the shortest).

    No rank needs more than `limit_bytes` of device memory; None if no such partition is found (`does_not_fit` says
    why). With GPipe and 1F1B the result is exact: for "speed" the least sum t_s + (M - 1) max t_s. With several stages a
    rank it is the best of all partitions if these are few, else the best that a search on the simulated step finds.

    Raises UserError if `optimize` is neither.
    """
    if optimize not in ("speed", "memory"):
        raise UserError(f"option --optimize: {optimize!r}; allowed: speed, memory; fix: choose one of them")
    if _schedule(costs) in EXACT:
        exact = exact_search(costs)
        begins = exact.fastest(limit_bytes) if optimize == "speed" else exact.smallest()
    else:
        begins = _simulated(costs, optimize, limit_bytes)
    if begins is None:
        return None
    partition = costs.predict(begins)
    return partition if limit_bytes is None or max(partition.rank_bytes) <= limit_bytes else None


def does_not_fit(costs: CostModel, limit_bytes: int) -> UserError:
    """The error for a model that does not fit: the segment that is too large for any rank, or what the ranks need."""
    limit = f"{limit_bytes / MIB:.4g} MiB"
    for segment in costs.segments:
        if (size := costs.least_bytes(segment)) > limit_bytes:
            return UserError(
                f"the model does not fit: segment {segment.name} alone needs {size / MIB:.4g} MiB; allowed: {limit} "
                "per rank; fix: smaller microbatches, or a higher limit"
            )
    smallest = choose_stages(costs, "memory")
    assert smallest is not None  # without a limit
    return UserError(
        f"the model does not fit {costs.shape.ranks} pipeline ranks with schedule {costs.shape.schedule}; allowed: "
        f"{limit} per rank; the smallest partition found needs {max(smallest.rank_bytes) / MIB:.4g} MiB; fix: more "
        "ranks, smaller microbatches, or a higher limit"
    )


def exact_search(costs: CostModel) -> ExactSearch:
    """The search over whole nanoseconds and bytes of the segments."""
    segments, memory = costs.segments, costs.memory
    loads = Loads(
        time=[round((s.forward_s * (1 + memory.recompute) + s.backward_s) * 1e9) for s in segments],
        states=[memory.states(s.parameter_bytes) for s in segments],
        saved=[s.saved_bytes for s in segments],
        entry=[memory.buffers(s.boundary_bytes, 0, costs.shape.microbatches) for s in segments],
        kept=[memory.kept(s.boundary_bytes) for s in segments] if memory.recompute else None,
        repeats=[(one, two, memory.states(size)) for one, two, size in costs.shared.repeats],
    )
    return ExactSearch(loads, costs.in_flight)


def _schedule(costs: CostModel) -> str:
    return schedules.ALIASES.get(costs.shape.schedule, costs.shape.schedule)


def _simulated(costs: CostModel, optimize: str, limit: int | None) -> Begins:
    exact = exact_search(costs)  # as if each stage had a rank of its own: a good start
    starts = [begins for begins in (exact.fastest(), exact.smallest()) if begins is not None]

    def cost(begins: Begins) -> tuple[float, ...]:
        forward, backward = costs.times(begins)
        largest = 0
        if optimize == "memory" or limit is not None:
            largest = max(costs.rank_bytes(begins))
        over = 0 if limit is None else max(0, largest - limit)
        step = costs.simulator.step_s(forward, backward)
        spread = sum((f + b) ** 2 for f, b in zip(forward, backward, strict=True))
        return (over, largest, step, spread) if optimize == "memory" else (over, step, spread)

    return search_by_cost(cost, starts, len(costs.segments), max(1, ACTIONS // costs.simulator.length))
