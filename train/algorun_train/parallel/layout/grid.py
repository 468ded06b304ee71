"""The place of every rank of a job: `dp` replicas x `pp` pipeline ranks. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from algorun_train.common.errors import UserError

PLACEMENTS = ("cluster", "spread")


@dataclass(frozen=True, slots=True)
class Grid:
    """Two axes: "dp" with the degree `dp` (replicas), "pp" with the degree `pp` (ranks of each pipeline)."""

    dp: int
    pp: int
    placement: str = "cluster"
    """"cluster": neighbouring ranks form a pipeline (they talk most, and often share a host); "spread": neighbouring ranks
    hold the same stages of different replicas"""

    def place(self, rank: int) -> tuple[int, int]:
        """(`dp_rank`, `pp_rank`) of a rank."""
        if self.placement == "cluster":
            return rank // self.pp, rank % self.pp
        return rank % self.dp, rank // self.dp

    def rank(self, dp_rank: int, pp_rank: int) -> int:
        """The rank at a place: the inverse of `place`."""
        return dp_rank * self.pp + pp_rank if self.placement == "cluster" else pp_rank * self.dp + dp_rank

    @property
    def pipelines(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each replica, in the order of their stages."""
        return tuple(tuple(self.rank(dp, pp) for pp in range(self.pp)) for dp in range(self.dp))

    @property
    def replicas(self) -> tuple[tuple[int, ...], ...]:
        """For each `pp_rank` the ranks that hold the same stages."""
        return tuple(tuple(self.rank(dp, pp) for dp in range(self.dp)) for pp in range(self.pp))


def grid(world_size: int, pp: int, placement: str = "cluster", named: str | None = None) -> Grid:
    """The grid of a job. Raises UserError if `pp` does not divide the ranks; the message calls it `named`."""
    if placement not in PLACEMENTS:
        raise UserError(f"option --placement: {placement!r}; allowed: {', '.join(PLACEMENTS)}; fix: use one of them")
    if pp < 1 or world_size % pp:
        fits = ", ".join(str(n) for n in range(1, world_size + 1) if world_size % n == 0)
        raise UserError(
            f"{named or f'option --pp: {pp}'} does not divide the job's {world_size} ranks; allowed: {fits}; "
            "fix: choose one of them, or start another number of ranks"
        )
    return Grid(world_size // pp, pp, placement)
