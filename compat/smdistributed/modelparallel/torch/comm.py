"""The library's communication primitives: Python objects between ranks.

`broadcast` is no collective: as documented, it goes with a `recv_from` on every other rank of the group.
"""

from __future__ import annotations

from algorun_train.errors import UserError
from smdistributed.script_types import Given, Result

from .meeting import together
from .messages import gathered, packed, post, take
from .ranks import (
    DP_GROUP,
    MP_GROUP,
    PP_GROUP,
    RDP_GROUP,
    TP_GROUP,
    WORLD,
    CommGroup,
    RankType,
    global_rank,
    joined,
    members,
)
from .session import session


def _peer(what: str, number: int, rank_type: RankType) -> int:
    found = global_rank(number, rank_type)
    if found == session().comm.rank:
        raise UserError(f"smp.{what}: {rank_type.name} {number} is this process itself; fix: name another rank")
    return found


def send(obj: Given, dest_rank: int, rank_type: RankType) -> None:
    """Sends an object that can be pickled; returns once rank `dest_rank` of the group has called `recv_from`.

    Raises UserError for a rank that the group does not have, or this one.
    """
    post(packed(obj), [_peer("send", dest_rank, rank_type)])


def recv_from(src_rank: int, rank_type: RankType) -> Result:
    """The object that rank `src_rank` of the group sends, by `send` or `broadcast`.

    Tensors that were on a GPU are on this rank's. Raises UserError as `send` does.
    """
    return take(_peer("recv_from", src_rank, rank_type), session().comm.device)


def broadcast(obj: Given, group: CommGroup) -> None:
    """Sends an object to all others of a group; returns once each has called `recv_from`. UserError for no group."""
    if others := [rank for rank in members(group) if rank != session().comm.rank]:
        post(packed(obj), others)


def allgather(obj: Given, group: CommGroup) -> list[Result]:
    """The objects of all ranks of a group, by their rank in it. All of them call it. UserError for no group."""
    return gathered(obj, joined(group), session().comm.device, "smp.allgather")


def barrier(group: CommGroup = WORLD) -> None:
    """Waits until all ranks of a group have come here. UserError for no group, and where one of them cannot come."""
    together(members(group), "smp.barrier")


def mp_barrier() -> None:
    """Waits for the ranks of this model replica."""
    barrier(MP_GROUP)


def pp_barrier() -> None:
    """Waits for the ranks of this pipeline."""
    barrier(PP_GROUP)


def dp_barrier() -> None:
    """Waits for the ranks with the same model partition."""
    barrier(DP_GROUP)


def rdp_barrier() -> None:
    """As `dp_barrier`."""
    barrier(RDP_GROUP)


def tp_barrier() -> None:
    """Returns at once: a tensor parallel group has one rank."""
    barrier(TP_GROUP)
