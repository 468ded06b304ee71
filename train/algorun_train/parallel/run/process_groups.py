"""The grid's process groups: one for each pipeline, one for each set of ranks that hold the same stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from algorun_train.parallel.grid import Grid
from algorun_train.ranks.join import COLLECTIVE_TIMEOUT


@dataclass(frozen=True, slots=True)
class Axes:
    """This rank's place and groups; a group is None where nobody else is in it."""

    grid: Grid
    dp_rank: int
    pp_rank: int
    pp_group: dist.ProcessGroup | None
    dp_group: dist.ProcessGroup | None
    device: torch.device


def _mine(rank: int, groups: Sequence[Sequence[int]]) -> dist.ProcessGroup | None:
    """Every rank makes every group, in the same order: new_group is a collective of the whole job."""
    made = [(dist.new_group(list(ranks), timeout=COLLECTIVE_TIMEOUT), ranks) for ranks in groups if len(ranks) > 1]
    return next((group for group, ranks in made if rank in ranks), None)


def join(grid: Grid, rank: int, device: torch.device) -> Axes:
    """Makes the groups on all ranks; torch.distributed is initialised unless the grid has one rank."""
    dp_rank, pp_rank = grid.place(rank)
    pp_group, dp_group = _mine(rank, grid.pipelines), _mine(rank, grid.replicas)
    if pp_group is not None:
        # Without it the group's first operation would be a batch between two neighbours. torch leaves undefined what that
        # does where not all ranks of the group take part (batch_isend_irecv).
        dist.all_reduce(torch.zeros(1, device=device), group=pp_group)
    return Axes(grid, dp_rank, pp_rank, pp_group, dp_group, device)
