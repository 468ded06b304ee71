"""Messages between ranks as NCCL moves them once a script has passed `device_id` to init_process_group.

All operations of a rank on a group then run on one communicator, one after the other, in the order in which they were
issued (torch's ProcessGroupNCCL: "unbatched P2P ops are treated as independent collective ops, and are thus serialized
with all other ops on this ProcessGroup"). `listened` writes that order down, `stuck` runs it: a send ends when the
receiver's matching operation is at the head of the receiver's own queue, never before, and the operations of one
batch_isend_irecv progress together. Real NCCL buffers small messages, so it may get further than this.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

SEND, RECEIVE, ALL = "send", "receive", "all"
Operation = tuple[str, int]
"""what, and the rank of the group at the other end (-1: all ranks of the group)"""
Queue = list[list[Operation]]
"""operations of one rank in the order in which they were issued; those of one batch are one item"""
OTHER = {SEND: RECEIVE, RECEIVE: SEND}
NAMES = ("isend", "irecv", "send", "recv", "batch_isend_irecv", "all_reduce", "broadcast")


class _Done:
    """The work of an operation that nobody carries out. As Gloo's, it can be waited for once."""

    waited = False

    def wait(self) -> bool:
        assert not self.waited
        self.waited = True
        return True


@contextlib.contextmanager
def listened(moves: bool) -> Iterator[Queue]:
    """What this rank issues meanwhile. Without `moves` nothing is sent, and what is received is ones."""
    queue: Queue = []
    real = {name: getattr(distributed_c10d, name) for name in NAMES}
    inside = [False]  # a batch calls isend and irecv, and so do send and recv

    @contextlib.contextmanager
    def within() -> Iterator[None]:
        before, inside[0] = inside[0], True
        try:
            yield
        finally:
            inside[0] = before

    def one(kind: str, name: str, tensor: torch.Tensor, peer: int | None, group: Any, group_peer: int | None) -> Any:
        if group_peer is None:
            group_peer = peer if group is None else dist.get_group_rank(group, peer)
        if not inside[0]:
            queue.append([(kind, group_peer)])
        if moves:
            with within():
                return real[name](tensor, group=group, **{f"group_{'dst' if kind == SEND else 'src'}": group_peer})
        if kind == RECEIVE:
            tensor.detach().fill_(1)  # torch asks "are all shapes known?" and waits for a one
        return _Done()

    def watched(kind: str, name: str) -> Callable[..., Any]:
        """torch's function `name` for one message, whose other end is called dst or src."""
        end = "dst" if kind == SEND else "src"

        def call(tensor: torch.Tensor, peer: int | None = None, group: Any = None, tag: int = 0, **named: Any) -> Any:
            return one(kind, name, tensor, named.get(end, peer), group, named.get(f"group_{end}"))

        return call

    isend, irecv = watched(SEND, "isend"), watched(RECEIVE, "irecv")
    send, recv = watched(SEND, "send"), watched(RECEIVE, "recv")

    def batch(operations: Sequence[dist.P2POp]) -> Any:
        queue.append([(SEND if each.op is isend else RECEIVE, each.group_peer) for each in operations])
        with within():
            if moves:
                return real["batch_isend_irecv"](operations)
            return [each.op(each.tensor, group=each.group, **_end(each, isend)) for each in operations]

    def collective(name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            queue.append([(ALL, -1)])
            return real[name](*args, **named)

        return call

    spies = dict(
        zip(NAMES, (isend, irecv, send, recv, batch, collective("all_reduce"), collective("broadcast")), strict=True)
    )
    with contextlib.ExitStack() as stack:
        for name, spy in spies.items():
            for module in (dist, distributed_c10d):
                stack.enter_context(mock.patch.object(module, name, spy))
        yield queue


def _end(operation: dist.P2POp, isend: Any) -> dict[str, int]:
    return {"group_dst" if operation.op is isend else "group_src": operation.group_peer}


def stuck(queues: Sequence[Queue]) -> list[str]:
    """What each rank waits for when nothing moves any more; nothing where all operations have ended."""
    places = [0] * len(queues)
    left = [Counter(queue[0]) if queue else Counter() for queue in queues]
    moved = True
    while moved:
        moved = False
        for rank, waiting in enumerate(left):
            for kind, peer in list(waiting.elements()):
                if kind == ALL:
                    if not all(other[kind, peer] for other in left):
                        continue
                    for other in left:
                        other[kind, peer] -= 1
                elif left[peer][OTHER[kind], rank]:
                    waiting[kind, peer] -= 1
                    left[peer][OTHER[kind], rank] -= 1
                else:
                    continue
                moved = True
                break
        for rank, queue in enumerate(queues):
            if places[rank] < len(queue) and not left[rank].total():
                places[rank] += 1
                left[rank] = Counter(queue[places[rank]]) if places[rank] < len(queue) else Counter()
                moved = True
    return [
        f"rank {rank} waits in operation {place} of {len(queue)}: {sorted(left[rank].elements())}"
        for rank, (place, queue) in enumerate(zip(places, queues, strict=True))
        if place < len(queue)
    ]
