"""Which rank this is, and whom it works with: the "MPI basics" of the library's interface.

A model replica lies on the ranks of a pipeline, so the model parallel (mp) group is the pipeline parallel (pp) one.
There is no tensor parallelism, so a tensor parallel (tp) group is this rank alone, and the reduced-data parallel (rdp)
group is the data parallel (dp) one.
"""

from __future__ import annotations

from enum import Enum, auto

import torch.distributed as dist

from algorun_train.errors import UserError

from .session import session


class CommGroup(Enum):
    """A group of processes that this one belongs to."""

    WORLD = auto()
    MP_GROUP = auto()
    DP_GROUP = auto()
    PP_GROUP = auto()
    RDP_GROUP = auto()
    TP_GROUP = auto()


class RankType(Enum):
    """In which group a number is a rank."""

    WORLD_RANK = auto()
    MP_RANK = auto()
    DP_RANK = auto()
    PP_RANK = auto()
    RDP_RANK = auto()
    TP_RANK = auto()


WORLD = CommGroup.WORLD
MP_GROUP = CommGroup.MP_GROUP
DP_GROUP = CommGroup.DP_GROUP
PP_GROUP = CommGroup.PP_GROUP
RDP_GROUP = CommGroup.RDP_GROUP
TP_GROUP = CommGroup.TP_GROUP

_alone: dist.ProcessGroup | None = None


def members(group: CommGroup) -> list[int]:
    """The global ranks of this process's group, by their rank in it. UserError for what is no group."""
    now = session()
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


def joined(group: CommGroup) -> dist.ProcessGroup | None:
    """The torch.distributed group, None where this process is alone in it."""
    ranks, now = members(group), session()
    if len(ranks) == 1:
        return None
    if len(ranks) == now.comm.size:
        return dist.group.WORLD
    return now.axes.pp_group if group in (MP_GROUP, PP_GROUP) else now.axes.dp_group


def _process_group(group: CommGroup) -> dist.ProcessGroup:
    """As `joined`, with a group of one where this process is alone: None would stand for all ranks in torch's calls."""
    global _alone
    found = joined(group)
    if found is not None:
        return found
    if not dist.is_initialized():
        raise UserError(
            "a process that no launcher started has no torch.distributed group; fix: start the script through "
            "algorun or torchrun"
        )
    if group is WORLD and dist.group.WORLD is not None:
        return dist.group.WORLD
    if _alone is None:
        # The others are not asked: each makes its own, when it wants one.
        _alone = dist.new_group([session().comm.rank], use_local_synchronization=True)
    return _alone


def rank() -> int:
    """This process's rank in the job."""
    return session().comm.rank


def size() -> int:
    """The number of processes in the job."""
    return session().comm.size


def local_rank() -> int:
    """This process's rank on its host."""
    return session().comm.world.local_rank


def local_size() -> int:
    """The number of processes on this host."""
    return session().comm.world.local_world_size


def pp_rank() -> int:
    """This process's rank in its pipeline."""
    return session().axes.pp_rank


def pp_size() -> int:
    """The number of ranks of a pipeline."""
    return session().layout.grid.pp


def dp_rank() -> int:
    """Which of the model replicas this process belongs to."""
    return session().axes.dp_rank


def dp_size() -> int:
    """The number of model replicas."""
    return session().layout.grid.dp


def tp_rank() -> int:
    """0: there is no tensor parallelism."""
    session()
    return 0


def tp_size() -> int:
    """1: there is no tensor parallelism."""
    session()
    return 1


mp_rank, mp_size, rdp_rank, rdp_size = pp_rank, pp_size, dp_rank, dp_size


def get_mp_group() -> list[int]:
    """The global ranks that hold this process's model replica together."""
    return members(MP_GROUP)


def get_pp_group() -> list[int]:
    """The global ranks of this process's pipeline, by stage."""
    return members(PP_GROUP)


def get_dp_group() -> list[int]:
    """The global ranks that hold the same model partition."""
    return members(DP_GROUP)


def get_rdp_group() -> list[int]:
    """As `get_dp_group`: there is no tensor parallelism."""
    return members(RDP_GROUP)


def get_tp_group() -> list[int]:
    """This rank alone: there is no tensor parallelism."""
    return members(TP_GROUP)


def get_world_process_group() -> dist.ProcessGroup:
    """All processes, for calls of torch.distributed."""
    return _process_group(WORLD)


def get_mp_process_group() -> dist.ProcessGroup:
    """The processes of this model replica, for calls of torch.distributed."""
    return _process_group(MP_GROUP)


def get_pp_process_group() -> dist.ProcessGroup:
    """The processes of this pipeline, for calls of torch.distributed."""
    return _process_group(PP_GROUP)


def get_dp_process_group() -> dist.ProcessGroup:
    """The processes with the same model partition, for calls of torch.distributed."""
    return _process_group(DP_GROUP)


def get_rdp_process_group() -> dist.ProcessGroup:
    """As `get_dp_process_group`."""
    return _process_group(RDP_GROUP)


def get_tp_process_group() -> dist.ProcessGroup:
    """This process alone, for calls of torch.distributed."""
    return _process_group(TP_GROUP)
