"""Objects from one rank of a process group to another, or to all.

With a `Packing` that is direct, tensors travel from device to device: NCCL carries those on GPUs, without a copy on the
host and without waiting for the GPU, and Gloo those on the CPU. What they look like, and everything that is no tensor,
goes ahead through Gloo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from algorun_train.common.errors import UserError

from .packing import Packed, Packing

TOGETHER = 64 * 1024  # bytes; regions of one device up to that travel in one message: each costs more than its bytes
T = TypeVar("T")


class ObjectChannel:
    """One group of ranks that send each other any object that pickle takes. Ranks are numbers in the group."""

    def __init__(self, group: dist.ProcessGroup | None, packing: Packing) -> None:
        """`group` carries CPU tensors, and if `packing` is direct, those on its device as well."""
        self._group, self.packing = group, packing

    def send(self, value: Packed, to: int) -> list[dist.Work]:
        """Sends what `packing` has packed to a rank without waiting for it; the works have to be waited for."""
        parts = [*_announcement(value.data), *_outgoing(value.regions)]
        works = [dist.isend(part, group=self._group, group_dst=to) for part in parts]
        return [work for work in works if work is not None]

    def receive(self, source: int) -> Any:  # what the other rank has packed
        """What a rank has sent with `send`."""
        return self._arrived(lambda message: dist.recv(message, group=self._group, group_src=source), source)

    def share(self, value: T | None, source: int, rank: int) -> T:
        """The `value` of rank `source` on all ranks of the group, of which this one is `rank`. All of them call it.

        Raises UserError on all of them if it cannot be sent.
        """

        def broadcast(message: torch.Tensor) -> None:
            dist.broadcast(message, group=self._group, group_src=source)

        if rank != source:
            arrived: T = self._arrived(broadcast, source)
            return arrived
        try:
            packed = self.packing.pack(value)
        except UserError:
            broadcast(torch.tensor([-1]))
            raise
        for part in [*_announcement(packed.data), *_outgoing(packed.regions)]:
            broadcast(part)
        return cast(T, value)

    def _arrived(self, arrive: Callable[[torch.Tensor], object], source: int) -> Any:  # as `receive`
        """The object of rank `source`, whose messages `arrive` fills one after the other. UserError if it has sent none."""
        size = torch.empty(1, dtype=torch.int64)
        arrive(size)
        if int(size) < 0:
            rank = source if self._group is None else dist.get_global_rank(self._group, source)
            raise UserError(f"what rank {rank} has cannot be sent; its error says why")
        data = torch.empty(int(size), dtype=torch.uint8)
        arrive(data)
        return self.packing.unpack(data.numpy().tobytes(), lambda regions: _fill(regions, arrive))


def gathered_rows(mine: torch.Tensor, length: int, group: dist.ProcessGroup | None) -> list[torch.Tensor]:
    """Every rank's uint8 `[bytes]`, filled up to `[length]`, in the order of the group. On the CPU, and on all of them."""
    padded = torch.zeros(length, dtype=torch.uint8)
    padded[: len(mine)] = mine
    rows = [torch.empty_like(padded) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, padded, group=group)
    return rows


def _announcement(data: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([len(data)]), torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _in_messages(regions: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Which regions travel together: bytes, since NCCL does not know all types."""
    full = [region for region in regions if len(region)]
    small = [
        [each for each in full if len(each) <= TOGETHER and (each.device.type == "cpu") is cpu] for cpu in (True, False)
    ]
    return [*filter(None, small), *([each] for each in full if len(each) > TOGETHER)]


def _outgoing(regions: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in _in_messages(regions)]


def _fill(regions: Sequence[torch.Tensor], arrive: Callable[[torch.Tensor], object]) -> None:
    """Fills `regions` with what arrives in the messages that `_outgoing` makes of regions like them."""
    for parts in _in_messages(regions):
        if len(parts) == 1:
            arrive(parts[0])
            continue
        sizes = [len(part) for part in parts]
        message = torch.empty(sum(sizes), dtype=torch.uint8, device=parts[0].device)
        arrive(message)
        for part, content in zip(parts, message.split(sizes), strict=True):
            part.copy_(content)
