"""Shards a model over the ranks of a replica, and turns shares into whole tensors and back.

Ranks `r x shards .. (r + 1) x shards - 1` are replica r, so the ranks of a replica are next to each other: on one host, if
the host has enough of them. With tensor parallelism a tensor group of ranks stands for each of these, also next to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

from .split import OwnPiece, Split, TensorParts

SplitModel = Callable[[nn.Module], TensorParts]
"""leaves this rank of a tensor group its part of a model's weights, and returns how"""
SHARD, REPLICA, TENSOR = "shard", "replica", "tp"  # axes of the meshes


@dataclass(frozen=True, slots=True)
class TensorAxis:
    """The place of this rank among the ranks that compute each layer together, on the same batch."""

    mesh: DeviceMesh
    ranks: int
    index: int

    @property
    def group(self) -> dist.ProcessGroup:
        """The ranks of this tensor group."""
        return self.mesh.get_group()


@dataclass(frozen=True, slots=True)
class ShardMesh:
    """The place of this rank among replicas x shards, or replicas x shards x ranks of a tensor group."""

    mesh: DeviceMesh
    """the ranks that hold the same part of split weights: replicas x shards"""
    shards: int
    index: int
    """the number of this rank's share, from 0"""
    is_first_replica: bool
    """whether this rank belongs to the replica that writes checkpoints and the artifact"""
    replicas: int
    tensor: TensorAxis | None = None
    members_group: dist.ProcessGroup | None = None
    """all ranks of this replica; None if they are those of `mesh`"""

    @property
    def group(self) -> dist.ProcessGroup:
        """The ranks of this replica."""
        return self.members_group or self.shard_group

    @property
    def shard_group(self) -> dist.ProcessGroup:
        """The ranks that share the weights of this rank by rows."""
        return self.mesh.get_group(SHARD)

    @property
    def members(self) -> int:
        """The number of ranks of a replica."""
        return self.shards * (self.tensor.ranks if self.tensor else 1)

    @property
    def member(self) -> int:
        """The number of this rank in its replica, from 0."""
        return self.index * self.tensor.ranks + self.tensor.index if self.tensor else self.index


def make_mesh(device: torch.device, rank: int, size: int, shards: int, tensor: int = 1) -> ShardMesh:
    """The mesh of `size` ranks, in replicas of `shards` tensor groups of `tensor` ranks. Call it on all ranks. `shards` x `tensor`
    divides `size`."""
    copies = [range(index, size, tensor) for index in range(tensor)]
    mesh = _mesh_of(device, rank, copies, shards)
    number = rank // tensor
    place = shards, number % shards, number < shards, size // tensor // shards
    if tensor == 1:
        return ShardMesh(mesh, *place)
    axis = _tensor_axis(device, rank, size, tensor)
    members = own_group(rank, _successive(size, shards * tensor)) if shards > 1 else axis.group
    return ShardMesh(mesh, *place, axis, members)


def _successive(size: int, count: int) -> list[range]:
    """The numbers below `size` in groups of `count` that follow each other."""
    return [range(begin, begin + count) for begin in range(0, size, count)]


def make_mesh_of_stages(device: torch.device, grid: Grid, rank: int, shards: int) -> ShardMesh:
    """The mesh of the ranks that hold the same stages as this rank, in replicas of `shards` ranks, or tensor groups. Call it on
    all ranks.

    Successive pipelines form a replica. `shards` divides the number of pipelines.
    """
    number, _ = grid.place(rank)
    place = shards, number % shards, number < shards, grid.dp // shards
    mesh = _mesh_of(device, rank, grid.replicas, shards)
    if grid.tensor == 1:
        return ShardMesh(mesh, *place)
    members = [
        [grid.rank(dp, pp, index) for dp in range(first, first + shards) for index in range(grid.tensor)]
        for pp in range(grid.pp)
        for first in range(0, grid.dp, shards)
    ]
    axis = _tensor_axis(device, rank, grid.dp * grid.pp * grid.tensor, grid.tensor)
    return ShardMesh(mesh, *place, axis, own_group(rank, members) if shards > 1 else axis.group)


def _tensor_axis(device: torch.device, rank: int, size: int, tensor: int) -> TensorAxis:
    """This rank among the `tensor` ranks, two at least, of its tensor group. Call it on all `size` ranks."""
    group = own_group(rank, _successive(size, tensor))
    assert group is not None
    return TensorAxis(DeviceMesh.from_group(group, device.type, mesh_dim_names=(TENSOR,)), tensor, rank % tensor)


def _mesh_of(device: torch.device, rank: int, copies: Sequence[Sequence[int]], shards: int) -> DeviceMesh:
    """The mesh of the one of `copies`, disjoint groups of ranks with the same weights, that `rank` is in. On all ranks of the job.

    torch would make groups with time-outs of its own, 10 minutes for NCCL and 30 for Gloo; these have the job's.
    """
    own = next(ranks for ranks in copies if rank in ranks)
    if len(own) == 1:  # nobody to wait for
        return DeviceMesh(device.type, list(own), mesh_dim_names=(SHARD,))
    replicas = [ranks[begin : begin + shards] for ranks in copies for begin in range(0, len(ranks), shards)]
    within = own_group(rank, replicas)
    if within is not None and len(own) == shards:
        return DeviceMesh.from_group(within, device.type, mesh_dim_names=(SHARD,))
    across = own_group(rank, [ranks[index::shards] for ranks in copies for index in range(shards)])
    assert across is not None  # of two ranks at least
    if within is None:
        return DeviceMesh.from_group(across, device.type, mesh_dim_names=(REPLICA,))
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


@dataclass(frozen=True, slots=True)
class Splits:
    """How the ranks of a tensor group share weights, by name; a name that is not in `by_name` is whole on each of them."""

    by_name: Mapping[str, Split]
    axis: TensorAxis

    def renamed(self, names: Mapping[str, str]) -> Splits:
        """The same for weights that have other names elsewhere: `names` has ours for each of theirs."""
        return Splits({new: self.by_name[old] for new, old in names.items() if old in self.by_name}, self.axis)


def piece_of(name: str, like: torch.Tensor, splits: Splits | None) -> OwnPiece | None:
    """What this rank holds of the whole weight of that name; None if it holds all. `like` is what it holds."""
    rows, split = own_rows(like), splits.by_name.get(name) if splits else None
    if splits is None or split is None:
        return None if rows is None else OwnPiece(None, 0, rows)
    return OwnPiece(split, splits.axis.index, rows)


def whole_shape(name: str, like: torch.Tensor, splits: Splits | None) -> torch.Size:
    """The shape of the whole weight, of which this rank holds `like`."""
    split = splits.by_name.get(name) if splits else None
    return torch.Size(split.shape) if split else like.shape


def taken(whole: torch.Tensor, piece: OwnPiece | None) -> torch.Tensor:
    """The piece of a whole tensor; `whole` itself if `piece` is None."""
    if piece is None:
        return whole
    found = [whole[index] for index in piece.indices()]
    return found[0] if len(found) == 1 else torch.cat(found, piece.dim)


def set_own(like: torch.Tensor, piece: torch.Tensor) -> None:
    """Overwrites this rank's share with `piece`, or all of `like` if it is no share."""
    local(like).copy_(piece)


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


def own_share(whole: torch.Tensor, like: torch.Tensor, name: str = "", splits: Splits | None = None) -> torch.Tensor:
    """This rank's share of `whole`, laid out as `like`; `whole` itself if `like` is no share or has another shape. `name` is that of
    the weight, in `splits`."""
    piece = piece_of(name, like, splits)
    if piece is None or whole.shape != whole_shape(name, like, splits):
        return whole
    return laid_out(taken(whole, piece).to(local(like).device, copy=True).contiguous(), like)


def gathered(
    tensor: torch.Tensor, owner: int, mesh: ShardMesh, host: HostCopies | None = None, split: Split | None = None
) -> torch.Tensor | None:
    """The whole of `tensor` in the host's memory of member number `owner`; None on the other ranks of the replica.

    Call it on all ranks of a replica. Only the owner needs memory for the whole tensor. With `host` it is undefined until that
    has waited. `split` says how the ranks of a tensor group share it.
    """
    is_owner = mesh.member == owner
    if split is None and not isinstance(tensor, DTensor):
        if not is_owner:
            return None
        return host.copy(tensor) if host else tensor.detach().to("cpu", copy=True)
    share = local(tensor).detach()
    padded = _padded(share, _largest(tensor, split))
    pieces = [torch.empty_like(padded) for _ in range(mesh.members)] if is_owner else None
    dist.gather(padded, pieces, dst=dist.get_global_rank(mesh.group, owner), group=mesh.group)
    if pieces is None:
        return None
    if split is not None:
        joined = _joined(pieces, split, mesh.shards)
        return host.copy(joined) if host else joined.cpu()
    own = pieces[:: mesh.members // mesh.shards]  # the ranks of a tensor group hold the same
    if host:
        return host.joined(own, tensor.shape)
    whole = torch.empty(tensor.shape, dtype=tensor.dtype)
    rows = len(padded)
    for number, piece in enumerate(own):
        held = whole[number * rows : (number + 1) * rows]
        held.copy_(piece[: held.shape[0]])
    return whole


def _largest(tensor: torch.Tensor, split: Split | None) -> tuple[int, ...]:
    """The shape of the largest piece that a rank holds of such a tensor."""
    first, *rest = split.local_shape(0) if split else tensor.shape
    if not isinstance(tensor, DTensor):
        return (first, *rest)
    return (-(-first // tensor.device_mesh.size(tensor.device_mesh.ndim - 1)), *rest)


def _padded(share: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """`share` in the first corner of a tensor of `shape`: all ranks send the same number of bytes."""
    if share.shape == shape:
        return share.contiguous()
    padded = share.new_zeros(shape)
    padded[tuple(slice(size) for size in share.shape)] = share
    return padded


def _joined(pieces: Sequence[torch.Tensor], split: Split, shards: int) -> torch.Tensor:
    """The whole of a tensor that is split between the ranks of a tensor group, and then sharded by rows. `pieces` are those of all
    members, padded."""
    whole = pieces[0].new_empty(split.shape)
    for member, padded in enumerate(pieces):
        shard_number, rank = divmod(member, split.ranks)
        shape = split.local_shape(rank)
        each = -(-shape[0] // shards)
        begin = min(shard_number * each, shape[0])
        piece = OwnPiece(split, rank, slice(begin, min(begin + each, shape[0])))
        at = 0
        for index in piece.indices():
            target = whole[index]
            block = [slice(size) for size in target.shape]
            block[split.dim] = slice(at, at + target.shape[split.dim])
            target.copy_(padded[tuple(block)])
            at += target.shape[split.dim]
    return whole


def gathered_weights(model: nn.Module, mesh: ShardMesh, splits: Splits | None = None) -> dict[str, torch.Tensor]:
    """The whole state dict on rank 0, gathered tensor by tensor; {} on the other ranks. Call it on all ranks. Tied weights are one
    tensor with several names."""
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    tied = {name: kept for name, weight in named if (kept := first.setdefault(id(weight), name)) != name}
    state = model.state_dict()
    whole = gathered_state({name: tensor for name, tensor in state.items() if name not in tied}, mesh, splits)
    kept_names = {name: tied.get(name, name) for name in state}
    return {name: whole[kept] for name, kept in kept_names.items() if kept in whole}


def gathered_state(
    state: Mapping[str, torch.Tensor], mesh: ShardMesh, splits: Splits | None = None
) -> dict[str, torch.Tensor]:
    """Whole tensors on the first rank of the mesh, gathered one by one; {} on its other ranks. Call it on all of them. `splits`
    says, by name, how the ranks of a tensor group share a tensor."""
    if not mesh.is_first_replica:
        return {}
    whole = {
        name: gathered(tensor, 0, mesh, split=splits.by_name.get(name) if splits else None)
        for name, tensor in state.items()
    }
    return {name: tensor for name, tensor in whole.items() if tensor is not None}


def _rows(tensor: DTensor) -> tuple[int, int]:
    """The first row of this rank's share, and the rows of a share: FSDP2 cuts the first dimension as `torch.chunk` does."""
    mesh = tensor.device_mesh
    shards, index = mesh.size(mesh.ndim - 1), mesh.get_local_rank(mesh.ndim - 1)
    rows = -(-tensor.shape[0] // shards)
    return min(index * rows, tensor.shape[0]), rows
