"""Shards a model over the ranks of a replica, and turns shares into whole tensors and back.

Ranks `r x shards .. (r + 1) x shards - 1` are replica r, so the ranks of a replica are next to each other: on one host, if
the host has enough of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from algorun_train.parallel.layout.grid import Grid
from algorun_train.ranks.host_copies import HostCopies
from algorun_train.ranks.own_group import own_group

SHARD, REPLICA = "shard", "replica"  # axes of the mesh


@dataclass(frozen=True, slots=True)
class ShardMesh:
    """The place of this rank among replicas x shards."""

    mesh: DeviceMesh
    shards: int
    """ranks of a replica"""
    index: int
    """the number of this rank's share, from 0"""
    is_first_replica: bool
    """whether this rank belongs to the replica that writes checkpoints and the artifact"""
    replicas: int

    @property
    def group(self) -> dist.ProcessGroup:
        """The ranks of this replica."""
        return self.mesh.get_group(SHARD)


def make_mesh(device: torch.device, rank: int, size: int, shards: int) -> ShardMesh:
    """The mesh of `size` ranks, in replicas of `shards` ranks. Call it on all ranks. `shards` divides `size`."""
    mesh = _mesh_of(device, rank, [range(size)], shards)
    return ShardMesh(mesh, shards, rank % shards, rank < shards, size // shards)


def make_mesh_of_stages(device: torch.device, grid: Grid, rank: int, shards: int) -> ShardMesh:
    """The mesh of the ranks that hold the same stages as this rank, in replicas of `shards` ranks. Call it on all ranks.

    Successive pipelines form a replica. `shards` divides the number of pipelines.
    """
    number, _ = grid.place(rank)
    mesh = _mesh_of(device, rank, grid.replicas, shards)
    return ShardMesh(mesh, shards, number % shards, number < shards, grid.dp // shards)


def _mesh_of(device: torch.device, rank: int, copies: Sequence[Sequence[int]], shards: int) -> DeviceMesh:
    """The mesh of the one of `copies`, disjoint groups of ranks with the same weights, that `rank` is in. On all ranks of the job.

    torch would make groups with time-outs of its own, 10 minutes for NCCL and 30 for Gloo; these have the job's.
    """
    own = next(ranks for ranks in copies if rank in ranks)
    if len(own) == 1:  # nobody to wait for
        return DeviceMesh(device.type, list(own), mesh_dim_names=(SHARD,))
    replicas = [ranks[begin : begin + shards] for ranks in copies for begin in range(0, len(ranks), shards)]
    within = own_group(rank, replicas)
    assert within is not None  # of two ranks at least
    if len(own) == shards:
        return DeviceMesh.from_group(within, device.type, mesh_dim_names=(SHARD,))
    across = own_group(rank, [ranks[index::shards] for ranks in copies for index in range(shards)])
    assert across is not None
    numbers = torch.tensor(list(own), dtype=torch.int).view(-1, shards)
    return DeviceMesh.from_group([across, within], device.type, mesh=numbers, mesh_dim_names=(REPLICA, SHARD))


def shard(model: nn.Module, units: Sequence[nn.Module], mesh: ShardMesh, half: torch.dtype | None) -> None:
    """Leaves each rank its share of each weight; a unit's weights are whole only while it computes. Call it on all ranks.

    The weights must be equal on all ranks. With `half`, torch.bfloat16 or float16, a unit computes in it; shares, sums of
    gradients and the model's output are float32. FSDP2 averages gradients over all ranks of the mesh.
    """
    inner = MixedPrecisionPolicy(half, torch.float32) if half else MixedPrecisionPolicy()
    for unit in units:
        fully_shard(unit, mesh=mesh.mesh, mp_policy=inner, reshard_after_forward=True)
    outer = MixedPrecisionPolicy(half, torch.float32, torch.float32) if half else inner
    # By default the outermost unit stays whole after a forward pass: after an evaluation its weights would not be shares.
    fully_shard(model, mesh=mesh.mesh, mp_policy=outer, reshard_after_forward=True)


def give_memory(model: nn.Module, device: torch.device) -> None:
    """Gives each rank memory on `device` for its shares of a model that was sharded on the meta device; what is in it is
    undefined. Buffers move there with their values."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to_empty(device=device)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])


def own_rows(like: torch.Tensor) -> slice | None:
    """The rows of the whole tensor that this rank's share has; None if `like` is no share."""
    if not isinstance(like, DTensor):
        return None
    begin, _ = _rows(like)
    return slice(begin, begin + like.to_local().shape[0])


def set_own(like: torch.Tensor, rows: torch.Tensor) -> None:
    """Overwrites this rank's share with `rows`, or all of `like` if it is no share."""
    local(like).copy_(rows)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's share of `tensor`, in the same memory; `tensor` itself if it is no share."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def laid_out(share: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`share`, which `local` returned for a tensor laid out as `like`, as such a tensor again."""
    if not isinstance(like, DTensor):
        return share
    return DTensor.from_local(
        share, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def own_share(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This rank's share of `whole`, laid out as `like`; `whole` itself if `like` is no share or has another shape."""
    if not isinstance(like, DTensor) or whole.shape != like.shape:
        return whole
    held = like.to_local()
    begin, _ = _rows(like)
    return laid_out(whole[begin : begin + held.shape[0]].to(held.device, copy=True).contiguous(), like)


def gathered(tensor: torch.Tensor, owner: int, mesh: ShardMesh, host: HostCopies | None = None) -> torch.Tensor | None:
    """The whole of `tensor` in the host's memory of share number `owner`; None on the other ranks of the replica.

    Call it on all ranks of a replica. Only the owner needs memory for the whole tensor. With `host` it is undefined until that
    has waited.
    """
    if not isinstance(tensor, DTensor):
        if mesh.index != owner:
            return None
        return host.copy(tensor) if host else tensor.detach().to("cpu", copy=True)
    share = tensor.to_local().detach()
    _, rows = _rows(tensor)
    padded = share.new_zeros(rows, *tensor.shape[1:])
    padded[: share.shape[0]] = share
    is_owner = mesh.index == owner
    pieces = [torch.empty_like(padded) for _ in range(mesh.shards)] if is_owner else None
    dist.gather(padded, pieces, dst=dist.get_global_rank(mesh.group, owner), group=mesh.group)
    if pieces is None:
        return None
    if host:
        return host.joined(pieces, tensor.shape)
    whole = torch.empty(tensor.shape, dtype=tensor.dtype)
    for number, piece in enumerate(pieces):
        held = whole[number * rows : (number + 1) * rows]
        held.copy_(piece[: held.shape[0]])
    return whole


def gathered_weights(model: nn.Module, mesh: ShardMesh) -> dict[str, torch.Tensor]:
    """The whole state dict on rank 0, gathered tensor by tensor; {} on the other ranks. Call it on all ranks."""
    return gathered_state(model.state_dict(), mesh)


def gathered_state(state: Mapping[str, torch.Tensor], mesh: ShardMesh) -> dict[str, torch.Tensor]:
    """Whole tensors on the first rank of the mesh, gathered one by one; {} on its other ranks. Call it on all of them."""
    if not mesh.is_first_replica:
        return {}
    whole = {name: gathered(tensor, 0, mesh) for name, tensor in state.items()}
    return {name: tensor for name, tensor in whole.items() if tensor is not None}


def _rows(tensor: DTensor) -> tuple[int, int]:
    """The first row of this rank's share, and the rows of a share: FSDP2 cuts the first dimension as `torch.chunk` does."""
    mesh = tensor.device_mesh
    shards, index = mesh.size(mesh.ndim - 1), mesh.get_local_rank(mesh.ndim - 1)
    rows = -(-tensor.shape[0] // shards)
    return min(index * rows, tensor.shape[0]), rows
