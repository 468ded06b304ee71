"""The place of every rank of a job: `dp` replicas x `pp` stages x `tensor` ranks of a tensor group. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from algorun_train.common.errors import UserError

PLACEMENTS = ("cluster", "spread")


@dataclass(frozen=True, slots=True)
class Grid:
    """Two axes: "dp" with the degree `dp` (replicas), "pp" with the degree `pp` (ranks of each pipeline).

    With `tensor` above 1 that many ranks, which follow each other, stand at each place: they compute the stages together. One of
    each group forms a pipeline with the same ones of the other groups, so a replica has `tensor` pipelines.
    """

    dp: int
    pp: int
    placement: str = "cluster"
    """"cluster": neighbouring ranks form a pipeline (they talk most, and often share a host); "spread": neighbouring ranks
    hold the same stages of different replicas"""
    tensor: int = 1
    """ranks of a tensor group"""

    def place(self, rank: int) -> tuple[int, int]:
        """(`dp_rank`, `pp_rank`) of a rank."""
        group = rank // self.tensor
        if self.placement == "cluster":
            return group // self.pp, group % self.pp
        return group % self.dp, group // self.dp

    def rank(self, dp_rank: int, pp_rank: int, index: int = 0) -> int:
        """The rank at a place, number `index` of its tensor group."""
        group = dp_rank * self.pp + pp_rank if self.placement == "cluster" else pp_rank * self.dp + dp_rank
        return group * self.tensor + index

    @property
    def pipelines(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each pipeline, in the order of their stages; the pipelines of a replica follow each other."""
        places = [(dp, index) for dp in range(self.dp) for index in range(self.tensor)]
        return tuple(tuple(self.rank(dp, pp, index) for pp in range(self.pp)) for dp, index in places)

    @property
    def replicas(self) -> tuple[tuple[int, ...], ...]:
        """For each `pp_rank` the ranks that hold the same stages, and of a tensor group the same parts of them."""
        places = [(pp, index) for pp in range(self.pp) for index in range(self.tensor)]
        return tuple(tuple(self.rank(dp, pp, index) for dp in range(self.dp)) for pp, index in places)


def grid(world_size: int, pp: int, placement: str = "cluster", named: str | None = None, tensor: int = 1) -> Grid:
    """The grid of a job. Raises UserError if `pp` does not divide the ranks, or the groups of `tensor` ranks, a divisor of them;
    the message calls it `named`."""
    if placement not in PLACEMENTS:
        raise UserError(f"option --placement: {placement!r}; allowed: {', '.join(PLACEMENTS)}; fix: use one of them")
    places, what = world_size // tensor, "ranks" if tensor == 1 else "tensor groups"
    if pp < 1 or places % pp:
        fits = ", ".join(str(n) for n in range(1, places + 1) if places % n == 0)
        raise UserError(
            f"{named or f'option --pp: {pp}'} does not divide the job's {places} {what}; allowed: {fits}; "
            "fix: choose one of them, or start another number of ranks"
        )
    return Grid(places // pp, pp, placement, tensor)
