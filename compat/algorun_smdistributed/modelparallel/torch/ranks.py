"""Which rank this is, and whom it works with: the "MPI basics" of the library's interface.

A model replica lies on the ranks of a pipeline, so the model parallel (mp) group is the pipeline parallel (pp) one.
There is no tensor parallelism, so a tensor parallel (tp) group is this rank alone, and the reduced-data parallel (rdp)
group is the data parallel (dp) one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeAlias

import torch.distributed as dist

from algorun_train.common.errors import UserError

from .session import context, session

CommGroup = Enum("CommGroup", ["WORLD", "MP_GROUP", "DP_GROUP", "PP_GROUP", "RDP_GROUP", "TP_GROUP"])
"""A group of processes that this one belongs to."""

RankType = Enum("RankType", ["WORLD_RANK", "MP_RANK", "DP_RANK", "PP_RANK", "RDP_RANK", "TP_RANK"])
"""In which group a number is a rank."""

WORLD, MP_GROUP, DP_GROUP, PP_GROUP, RDP_GROUP, TP_GROUP = CommGroup


def members(group: CommGroup) -> list[int]:
    """The global ranks of this process's group, by their rank in it. UserError for what is no group."""
    now = context()
    if group is WORLD:
        return list(range(now.comm.size))
    if group in (MP_GROUP, PP_GROUP):
        return list(now.layout.grid.pipelines[now.axes.dp_rank])
    if group in (DP_GROUP, RDP_GROUP):
        return list(now.layout.grid.replicas[now.axes.pp_rank])
    if group is TP_GROUP:
        return [now.comm.rank]
    raise UserError(
        f"group {group!r}; allowed: smp.CommGroup.{', '.join(g.name for g in CommGroup)}; fix: give one of them"
    )


def global_rank(number: int, rank_type: RankType) -> int:
    """The global rank of rank `number` of a group. UserError where the group has no such rank, or is none."""
    given: object = rank_type  # a script may give anything
    if not isinstance(given, RankType):
        allowed = ", ".join(kind.name for kind in RankType)
        raise UserError(f"rank_type {rank_type!r}; allowed: smp.RankType.{allowed}; fix: give one of them")
    name = "WORLD" if rank_type is RankType.WORLD_RANK else rank_type.name.replace("_RANK", "_GROUP")
    ranks = members(CommGroup[name])
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(ranks):
        raise UserError(
            f"{rank_type.name} {number!r}; allowed: 0 .. {len(ranks) - 1}; fix: a rank that the group has, "
            "or another rank_type"
        )
    return ranks[number]


def _process_group(group: CommGroup) -> dist.ProcessGroup:
    """The torch.distributed group; a group of one if this process is alone: None would stand for all ranks in torch's
    calls."""
    ranks, now = members(group), session()
    if len(ranks) > 1 and len(ranks) < now.context.comm.size:
        axes = now.context.axes
        found = axes.pp_group if group in (MP_GROUP, PP_GROUP) else axes.dp_group
        assert found is not None
        return found
    if not dist.is_initialized():
        raise UserError(
            "a process that no launcher started has no torch.distributed group; fix: start the script through "
            "algorun or torchrun"
        )
    if (len(ranks) > 1 or group is WORLD) and dist.group.WORLD is not None:
        return dist.group.WORLD
    if now.alone is None:
        # The others are not asked: each makes its own, when it wants one.
        now.alone = dist.new_group([now.context.comm.rank], use_local_synchronization=True)
    return now.alone


def rank() -> int:
    """This process's rank in the job."""
    return context().comm.rank


def size() -> int:
    """The number of processes in the job."""
    return context().comm.size


def local_rank() -> int:
    """This process's rank on its host."""
    return context().comm.world.local_rank


def local_size() -> int:
    """The number of processes on this host."""
    return context().comm.world.local_world_size


def get_world_process_group() -> dist.ProcessGroup:
    """All processes, for calls of torch.distributed."""
    return _process_group(WORLD)


Asked: TypeAlias = tuple[Callable[[], int], Callable[[], int], Callable[[], list[int]], Callable[[], dist.ProcessGroup]]


def _of(group: CommGroup) -> Asked:
    """What scripts ask of a group: this process's rank in it, its size, its global ranks, and its group of
    torch.distributed."""

    def rank_in_it() -> int:
        return members(group).index(context().comm.rank)

    def size_of_it() -> int:
        return len(members(group))

    def global_ranks() -> list[int]:
        return members(group)

    def process_group() -> dist.ProcessGroup:
        return _process_group(group)

    return rank_in_it, size_of_it, global_ranks, process_group


mp_rank, mp_size, get_mp_group, get_mp_process_group = _of(MP_GROUP)
pp_rank, pp_size, get_pp_group, get_pp_process_group = _of(PP_GROUP)
dp_rank, dp_size, get_dp_group, get_dp_process_group = _of(DP_GROUP)
rdp_rank, rdp_size, get_rdp_group, get_rdp_process_group = _of(RDP_GROUP)
tp_rank, tp_size, get_tp_group, get_tp_process_group = _of(TP_GROUP)
