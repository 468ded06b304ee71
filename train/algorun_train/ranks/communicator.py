"""The communicator of a job: collectives for small values and bytes, and for work that one rank does for all ranks.

Gradients and activations do not pass through it: DistributedDataParallel and the process groups of a pipeline move them.
"""

import datetime
from collections.abc import Callable
from typing import TypeVar, cast

import torch
import torch.distributed as dist

from algorun_train.common.errors import UserError

from .object_channel import ObjectChannel, gathered_rows
from .packing import Packing, cannot_be_sent
from .world import World

T = TypeVar("T")
# For work whose time grows with the model or a slow disk: an artifact of 100 GB takes half an hour at 50 MB/s, and a search for
# stages makes dozens of passes on the CPU.
LONG_WORK = datetime.timedelta(hours=2)
SWAP_TAG = 7_204  # of numbers between two ranks; other messages of the default group have other tags
CHUNK = 64 * 2**20  # bytes per broadcast of a checkpoint: bounds the second copy that a rank holds


class Communicator:
    """All ranks of a job, joined; this rank computes on `device`. `join.enter` creates it.

    Call every collective on all ranks, in the same order. Collectives move CPU tensors, so they do not wait for the work
    that is queued on a GPU. Without a process group (one process, no launcher) a collective returns its own input. If a
    rank does not call one within `join.COLLECTIVE_TIMEOUT`, torch raises RuntimeError on the other ranks.
    """

    def __init__(self, world: World, device: torch.device) -> None:
        self.world, self.device = world, device
        self.rank, self.size = world.rank, world.world_size
        self.is_leader = world.rank == 0
        self._packing = Packing(device, cannot_be_sent("a value for other ranks"))

    def say(self, text: object) -> None:
        """Prints `text` on rank 0; on other ranks it does nothing. Not a collective."""
        if self.is_leader:
            print(text, flush=True)

    def exchange(self, values: list[float]) -> list[list[float]]:
        """The `values` of all ranks as float64: row r is rank r's. All ranks give the same number of values."""
        if not self.world.distributed:
            return [values]
        mine = torch.tensor(values, dtype=torch.float64)
        rows = torch.empty(self.size, len(values), dtype=torch.float64)
        dist.all_gather(list(rows.unbind()), mine)
        return rows.tolist()

    def swap(self, values: list[float], to: int, source: int) -> list[float]:
        """Sends `values` to rank `to`; returns those that rank `source` sends here in the same call. Both ranks call it, with the
        same number of values; others need not."""
        mine = torch.tensor(values, dtype=torch.float64)
        arrived = torch.empty_like(mine)
        sending = dist.isend(mine, to, tag=SWAP_TAG)
        dist.recv(arrived, source, tag=SWAP_TAG)
        if sending is not None:
            sending.wait()
        return cast(list[float], arrived.tolist())

    def meet(self) -> None:
        """Returns once all ranks have called it."""
        self.exchange([0.0])

    def from_leader(self, work: Callable[[], T], limit: datetime.timedelta | None = None) -> T:
        """`from_rank` with rank 0 as the source."""
        return self.from_rank(0, work, limit)

    def from_rank(self, source: int, work: Callable[[], T], limit: datetime.timedelta | None = None) -> T:
        """Runs `work` on rank `source` and returns its result on all ranks. The result must be picklable.

        First all ranks meet, within COLLECTIVE_TIMEOUT. Then the other ranks wait for the result, for up to `limit` (by
        default COLLECTIVE_TIMEOUT). If rank `source` dies, they fail at once.

        Raises:
            UserError: on all ranks, if `work` raises one.
            Exception: for any other error of `work`: that error on rank `source`, a RuntimeError with its text elsewhere.
        """
        if not self.world.distributed:
            return work()
        if limit:  # within COLLECTIVE_TIMEOUT: `new_group` would wait up to `limit` for a rank that never comes
            self.meet()
        # torch has no time-out for one collective, only for a process group.
        group = dist.new_group(backend="gloo", timeout=limit) if limit else None
        mine: tuple[T | None, str | None, str | None] | None = None  # result, UserError's text, another error's text
        failure: Exception | None = None
        if self.rank == source:
            try:
                mine = work(), None, None
            except UserError as error:
                mine = None, str(error), None
            except Exception as error:
                mine, failure = (None, None, f"{type(error).__name__}: {error}"), error
        result, refused, failed = ObjectChannel(group, self._packing).share(mine, source, self.rank)
        if group is not None:
            self.meet()  # a rank that leaves the group breaks the connections of ranks that still connect to it
            dist.destroy_process_group(group)
        if failure is not None:
            raise failure
        if refused is not None:
            raise UserError(refused)
        if failed is not None:
            raise RuntimeError(f"rank {source} failed: {failed}")
        return cast(T, result)

    def on_all(self, work: Callable[[], T]) -> T:
        """Runs `work` on every rank and returns its result on that rank.

        Raises:
            UserError: on all ranks, if `work` raises one on any rank; the lowest such rank's error.
        """
        result: list[T] = []
        message = None
        try:
            result.append(work())
        except UserError as error:
            message = str(error)
        if first := next((text for text in self.gather(message) if text is not None), None):
            raise UserError(first)
        return result[0]

    def gather(self, value: T) -> list[T]:
        """The `value` of every rank, in the order of ranks. The values must be picklable."""
        if not self.world.distributed:
            return [value]
        content = torch.frombuffer(bytearray(self._packing.pack(value).data), dtype=torch.uint8)
        sizes = [int(row[0]) for row in self.exchange([float(len(content))])]
        return [self._packing.unpack(packed.numpy().tobytes()) for packed in self.gather_bytes(content, sizes)]

    def gather_bytes(self, mine: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
        """The tensor of every rank, in the order of ranks: uint8 `[sizes[rank]]`, on the CPU. All ranks give the same `sizes`."""
        if not self.world.distributed:
            return [mine]
        rows = gathered_rows(mine, max(sizes), None)
        return [row[:size] for row, size in zip(rows, sizes, strict=True)]

    def bytes_from_leader(self, data: bytes | None) -> bytes | None:
        """Rank 0's `data` (bytes or None) on every rank. The other ranks pass None."""
        if not self.world.distributed:
            return data
        size = int(self.exchange([-1.0 if data is None else float(len(data))])[0][0])
        if size < 0:
            return None
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(size, dtype=torch.uint8)
        self.broadcast(flat, 0)
        return data if data is not None else flat.numpy().tobytes()

    def broadcast(self, flat: torch.Tensor, source: int) -> None:
        """Overwrites `flat` with that of rank `source`: uint8 `[bytes]` on the CPU, of the same length on all ranks."""
        if self.world.distributed:
            for begin in range(0, len(flat), CHUNK):
                dist.broadcast(flat[begin : begin + CHUNK], src=source)
