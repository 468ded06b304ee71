"""This rank's place in the grid, its process groups along the axes "pp" (its pipeline) and "dp" (its replicas), and its tensor group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from algorun_train.parallel.layout.grid import Grid
from algorun_train.parallel.shard.sharded_model import ShardMesh, TensorAxis, make_mesh_of_stages
from algorun_train.ranks.own_group import own_group


@dataclass(frozen=True, slots=True)
class Axes:
    """This rank's place and groups. A group is None if this rank is the only one in it."""

    grid: Grid
    """the degrees of both axes"""
    dp_rank: int
    """number of this rank's replica"""
    pp_rank: int
    """place of this rank in its pipeline"""
    pp_group: dist.ProcessGroup | None
    dp_group: dist.ProcessGroup | None
    device: torch.device
    mesh: ShardMesh | None = None
    """the ranks with the same stages, if several of them share a weight"""

    @property
    def shard_mesh(self) -> ShardMesh | None:
        """The ranks with the same stages, if they shard them (FSDP2)."""
        return self.mesh if self.mesh and self.mesh.shards > 1 else None

    @property
    def tensor(self) -> TensorAxis | None:
        """This rank's place in its tensor group; None if it computes its stages alone."""
        return self.mesh.tensor if self.mesh else None

    @property
    def pipeline(self) -> int:
        """The number of this rank's pipeline in `grid.pipelines`."""
        return self.dp_rank * self.grid.tensor + (self.tensor.index if self.tensor else 0)


def join(grid: Grid, rank: int, device: torch.device, shards: int = 1) -> Axes:
    """Makes the groups. Call it on all ranks; torch.distributed must be initialised unless the grid has one rank.

    With `shards` above 1, a divisor of the number of pipelines, that many pipelines are one replica of the weights.
    """
    dp_rank, pp_rank = grid.place(rank)
    pp_group, dp_group = own_group(rank, grid.pipelines), own_group(rank, grid.replicas)
    if pp_group is not None:
        # Else the group's first operation would be a batch of messages between two neighbours. torch leaves that undefined
        # if not all ranks of the group take part (batch_isend_irecv).
        dist.all_reduce(torch.zeros(1, device=device), group=pp_group)
    mesh = make_mesh_of_stages(device, grid, rank, shards) if shards > 1 or grid.tensor > 1 else None
    return Axes(grid, dp_rank, pp_rank, pp_group, dp_group, device, mesh)
