"""Pipeline schedules: their names, their rules, the stages of each rank and the order of its computations.

The orders are those that torch.distributed.pipelining executes (2.10 to 2.15); docs/decisions/006-schedules-as-data.md says why
they stand here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from algorun_train.common.errors import UserError

from . import slots
from .slots import Action, numbered


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule that torch executes."""

    slots: Callable[[int, int, int, int], Iterator[slots.Slot]]
    """(pipeline rank, pipeline ranks, stages per rank, microbatches) -> the rank's slots in order"""
    chunks: tuple[int, int | None]
    """fewest and most stages of a rank; None: no limit"""
    v_shaped: bool = False
    """rank r of P runs the stages r and 2P-1-r instead of r, r+P, .."""
    experimental: bool = False
    """splits the backward pass: torch.compile, recomputation and some modules do not work with that"""


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """One pipeline: `chunks` stages on each of `ranks` ranks, and `microbatches` through them in one step."""

    schedule: str
    ranks: int
    chunks: int
    microbatches: int

    @property
    def stages(self) -> int:
        return self.ranks * self.chunks


SCHEDULES = {
    "gpipe": Schedule(slots.gpipe, (1, 1)),
    "1f1b": Schedule(slots.one_forward_one_backward, (1, 1)),
    "interleaved": Schedule(slots.interleaved, (2, None)),
    "zero-bubble": Schedule(slots.zero_bubble, (1, None), experimental=True),
    "zbv": Schedule(slots.zbv, (2, 2), v_shaped=True, experimental=True),
    "dualpipev": Schedule(slots.dualpipev, (2, 2), v_shaped=True, experimental=True),
}
ALIASES = {"simple": "gpipe"}


def find(name: str) -> Schedule:
    """The schedule of this name or alias. Raises UserError for an unknown name."""
    known = SCHEDULES.get(ALIASES.get(name, name))
    if known is None:
        allowed = ", ".join([*SCHEDULES, *ALIASES])
        raise UserError(f"option --schedule: {name!r} is not known; allowed: {allowed}; fix: choose one of them")
    return known


def rules(name: str, ranks: int, stages: int, microbatches: int, torch: str = "") -> None:
    """Raises a UserError with the rule that these numbers break, if they break one.

    `torch` is the version of torch; "": unknown. torch 2.10 cannot run schedules in the shape of a V.
    """
    schedule = find(name)
    least, most = schedule.chunks
    chunks, rest = divmod(stages, ranks)
    if rest or chunks < least or (most is not None and chunks > most):
        allowed = f"{least}" if least == most else f"{least} or more"
        counts = f"{least * ranks}" if least == most else f"{max(chunks, least) * ranks}"
        raise UserError(
            f"schedule {name} with {stages} stages on {ranks} pipeline ranks; allowed: {allowed} per rank, the same "
            f"number on each; fix: {counts} stages, or another --schedule"
        )
    if schedule.v_shaped and torch.startswith("2.10."):  # there a rank sends to itself, which Gloo cannot
        allowed = ", ".join(known for known, other in SCHEDULES.items() if not other.v_shaped)
        raise UserError(
            f"option --schedule: {name} with torch 2.10; allowed: {allowed}; fix: one of them, or torch 2.11"
        )
    if microbatches < 1:
        raise UserError(f"option --microbatches: {microbatches} is not allowed; allowed: at least 1; fix: 1 or more")
    if name in ("1f1b", "dualpipev") and microbatches < stages:
        raise UserError(
            f"option --microbatches: {microbatches} is too few for schedule {name}; allowed: at least {stages}, the "
            f"number of stages; fix: --microbatches {stages}, or --schedule gpipe"
        )
    if name in ("interleaved", "zero-bubble") and not _even_rounds(ranks, microbatches):
        below = next(m for m in range(microbatches, 0, -1) if _even_rounds(ranks, m))
        above = next(m for m in range(microbatches, 2 * (microbatches + ranks)) if _even_rounds(ranks, m))
        raise UserError(
            f"option --microbatches: {microbatches} does not fit schedule {name}; allowed: a multiple of the rounds "
            f"(microbatches // pipeline ranks = {microbatches // ranks}); fix: --microbatches {below} or {above}"
        )


def _even_rounds(ranks: int, microbatches: int) -> bool:
    return microbatches % max(1, microbatches // ranks) == 0


def check_recompute(name: str) -> None:
    """Raises UserError for a schedule that cannot compute activations again in its backward pass."""
    if find(name).experimental:
        raise UserError(
            f"option --recompute: not with the schedule {name}, which computes weight gradients apart; "
            "fix: --recompute False, or --schedule 1f1b"
        )


def stages_of(name: str, ranks: int, rank: int, chunks: int) -> tuple[int, ...]:
    """The stages of a pipeline rank, in the order of the model."""
    if find(name).v_shaped:
        return (rank, 2 * ranks - 1 - rank)
    return tuple(range(rank, ranks * chunks, ranks))


def rank_of(name: str, ranks: int, chunks: int) -> tuple[int, ...]:
    """The pipeline rank of every stage."""
    rank_by_stage = {stage: rank for rank in range(ranks) for stage in stages_of(name, ranks, rank, chunks)}
    return tuple(rank_by_stage[stage] for stage in range(ranks * chunks))


def orders(name: str, ranks: int, chunks: int, microbatches: int) -> tuple[tuple[Action, ...], ...]:
    """The actions of each pipeline rank, in order. Raises UserError if the schedule does not allow these numbers."""
    schedule = find(name)
    rules(name, ranks, ranks * chunks, microbatches)
    return tuple(numbered(schedule.slots(rank, ranks, chunks, microbatches), microbatches) for rank in range(ranks))


def allowed_microbatches(name: str, ranks: int, stages: int, counts: Sequence[int], torch: str = "") -> tuple[int, ...]:
    """The numbers of microbatches among `counts` that the schedule allows."""

    def fits(count: int) -> bool:
        try:
            rules(name, ranks, stages, count, torch)
        except UserError:
            return False
        return True

    return tuple(count for count in counts if fits(count))
