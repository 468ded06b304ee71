"""Where the ranks of a job stand: data parallel replicas x pipeline stages. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from algorun_train.errors import UserError

PLACEMENTS = ("cluster", "spread")


@dataclass(frozen=True, slots=True)
class Grid:
    """`dp` replicas of a pipeline over `pp` ranks.

    Placement "cluster" puts the ranks of one pipeline next to each other (they talk most, and often sit on one host),
    "spread" the ranks that hold equal stages. Both words are those of AWS's model parallel library.
    """

    dp: int
    pp: int
    placement: str = "cluster"

    def place(self, rank: int) -> tuple[int, int]:
        """(dp rank, pp rank) of a rank."""
        if self.placement == "cluster":
            return rank // self.pp, rank % self.pp
        return rank % self.dp, rank // self.dp

    def rank(self, dp_rank: int, pp_rank: int) -> int:
        """The rank at a place, the inverse of `place`."""
        return dp_rank * self.pp + pp_rank if self.placement == "cluster" else pp_rank * self.dp + dp_rank

    @property
    def pipelines(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each replica, in the order of their stages."""
        return tuple(tuple(self.rank(dp, pp) for pp in range(self.pp)) for dp in range(self.dp))

    @property
    def replicas(self) -> tuple[tuple[int, ...], ...]:
        """For each pp rank the ranks that hold the same stages."""
        return tuple(tuple(self.rank(dp, pp) for dp in range(self.dp)) for pp in range(self.pp))


def grid(world_size: int, pp: int, placement: str = "cluster", named: str | None = None) -> Grid:
    """The grid of a job. UserError when the ranks cannot be shared out evenly; `named` is `pp` as it was asked for."""
    if placement not in PLACEMENTS:
        raise UserError(f"option --placement: {placement!r}; allowed: {', '.join(PLACEMENTS)}; fix: use one of them")
    if pp < 1 or world_size % pp:
        fits = ", ".join(str(n) for n in range(1, world_size + 1) if world_size % n == 0)
        raise UserError(
            f"{named or f'option --pp: {pp}'} does not divide the job's {world_size} ranks; allowed: {fits}; "
            "fix: choose one of them, or start another number of ranks"
        )
    return Grid(world_size // pp, pp, placement)
