"""The library's communication primitives: Python objects between ranks.

`broadcast` is no collective: as documented, it goes with a `recv_from` on every other rank of the group.
"""

from __future__ import annotations

import functools

from algorun_smdistributed.ranks.meeting import RankMeeting
from algorun_smdistributed.script_types import Given, Result
from algorun_train.common.errors import UserError

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
    members,
)
from .session import context


def _peer(what: str, number: int, rank_type: RankType) -> int:
    found = global_rank(number, rank_type)
    if found == context().comm.rank:
        raise UserError(f"smp.{what}: {rank_type.name} {number} is this process itself; fix: name another rank")
    return found


def _post(obj: Given, receivers: list[int]) -> None:
    """Sends to all at once and waits until each has taken it."""
    channel = context().messages
    packed = channel.packing.pack(obj)
    for work in [work for to in receivers for work in channel.send(packed, to)]:
        work.wait()


def send(obj: Given, dest_rank: int, rank_type: RankType) -> None:
    """Sends an object that can be pickled; returns once rank `dest_rank` of the group has called `recv_from`.

    Raises UserError for a rank that the group does not have, or this one.
    """
    _post(obj, [_peer("send", dest_rank, rank_type)])


def recv_from(src_rank: int, rank_type: RankType) -> Result:
    """The object that rank `src_rank` of the group sends, by `send` or `broadcast`.

    Tensors that were on a GPU are on this rank's. Raises UserError as `send` does.
    """
    return context().messages.receive(_peer("recv_from", src_rank, rank_type))


def broadcast(obj: Given, group: CommGroup) -> None:
    """Sends an object to all others of a group; returns once each has called `recv_from`. UserError for no group."""
    if others := [rank for rank in members(group) if rank != context().comm.rank]:
        _post(obj, others)


def allgather(obj: Given, group: CommGroup) -> list[Result]:
    """The objects of all ranks of a group, by their rank in it. All of them call it. UserError for no group."""
    here, rows = context(), {context().comm.rank: obj}
    for meeting, what in _meetings("smp.allgather", group):
        rows = {rank: row for met in meeting.gathered(rows, what, here.comm.device) for rank, row in met.items()}
    return [rows[rank] for rank in members(group)]


def barrier(group: CommGroup = WORLD) -> None:
    """Waits until all ranks of a group have come here.

    Raises UserError if there is no such group, or if one of its ranks is in another call; RuntimeError, Gloo's, if one
    has ended.
    """
    for meeting, what in _meetings("smp.barrier", group):
        meeting.together(what)


def _meetings(call: str, group: CommGroup) -> list[tuple[RankMeeting, str]]:
    """The meetings that bring a group together, one after the other, and the name of the call in each.

    All ranks of the job meet in their pipelines first, then across them. So a rank that is in a step of its pipeline
    meanwhile gets an error, and nobody waits for it.
    """
    here, ranks = context(), members(group)
    if len(ranks) == here.comm.size:
        return [(meeting, f"{call}({WORLD.name})") for meeting in (here.pipeline, here.replicas)]
    for meeting, kind in ((here.pipeline, MP_GROUP), (here.replicas, DP_GROUP)):
        if list(meeting.ranks) == ranks:
            return [(meeting, f"{call}({kind.name})")]
    return [(RankMeeting(here.comm.rank, ranks), call)]  # this rank alone


mp_barrier = functools.partial(barrier, MP_GROUP)
pp_barrier = functools.partial(barrier, PP_GROUP)
dp_barrier = functools.partial(barrier, DP_GROUP)
rdp_barrier = functools.partial(barrier, RDP_GROUP)
tp_barrier = functools.partial(barrier, TP_GROUP)
