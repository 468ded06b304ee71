"""Copies of a GPU's tensors in the host's memory: all of them are queued, and one wait ends them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch

SEGMENT = 256 * 2**20  # bytes of a pinned buffer. torch rounds pinned memory up to a power of two, and this is one
LEAST = 2**20  # bytes of the first buffer: a small model must not pin SEGMENT
ALIGNED = 64  # bytes, for any dtype


class Device(Protocol):
    """The device whose tensors are copied. Tests have one without a GPU."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` is there, and not in the host's memory."""
        ...

    def pinned(self, size: int) -> torch.Tensor | None:
        """Memory of the host, uint8 `[size]`, that the device writes to by itself; None if there is none left."""
        ...

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> None:
        """Queues a copy; `into` is undefined until `wait` returns."""
        ...

    def wait(self) -> None:
        """Returns once all copies are made. Raises RuntimeError if the device failed."""
        ...


class Gpu:
    """This process's GPUs. Copies are queued on the current stream, behind the work that makes their sources."""

    def __init__(self) -> None:
        self._devices: set[torch.device] = set()

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cuda"

    def pinned(self, size: int) -> torch.Tensor | None:
        try:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        except RuntimeError:  # no more memory that can be pinned: a copy to other memory waits for itself
            return None

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> None:
        into.copy_(source, non_blocking=True)
        self._devices.add(source.device)

    def wait(self) -> None:
        for device in self._devices:
            torch.cuda.current_stream(device).synchronize()
        self._devices.clear()


class HostCopies:
    """Pinned buffers that hold one set of copies after the other.

    Buffers grow with the first set and stay: their bytes are those of the largest set, and at most one buffer more. Each is as
    large as all before it together, up to SEGMENT, or as the largest tensor if that is more, and always a power of two.
    """

    def __init__(self, device: Device | None = None) -> None:
        self._device = device or Gpu()
        self._buffers: list[torch.Tensor] = []
        self._used: list[int] = []

    def begin(self) -> None:
        """Begins a new set; nobody may read the copies of the last one any more."""
        self._used = [0] * len(self._buffers)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous copy of `tensor` in memory of its own. Of a tensor on the device it is undefined until `wait` returns."""
        source = tensor.detach()
        if not self._device.holds(source):
            return source.to("cpu", copy=True, memory_format=torch.contiguous_format)
        into = self._room(source.shape, source.dtype)
        self._device.copy(into, source)
        return into

    def joined(self, pieces: Sequence[torch.Tensor], shape: torch.Size) -> torch.Tensor:
        """As `copy`, of a tensor of `shape` whose rows are those of `pieces`, one piece after the other; rows beyond `shape` are
        left out."""
        on_device = self._device.holds(pieces[0])
        whole = self._room(shape, pieces[0].dtype) if on_device else torch.empty(shape, dtype=pieces[0].dtype)
        begin = 0
        for piece in pieces:
            into = whole[begin : begin + len(piece)]
            if len(into) and on_device:
                self._device.copy(into, piece.detach()[: len(into)])
            elif len(into):
                into.copy_(piece.detach()[: len(into)])
            begin += len(piece)
        return whole

    def wait(self) -> None:
        """Returns once all copies are made. Raises RuntimeError if the device failed."""
        self._device.wait()

    def _room(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Memory for a tensor, as a storage of its own: torch.save writes whole storages."""
        count = math.prod(shape)
        size = count * dtype.itemsize
        place = self._place(size) if count else None
        if place is None:
            return torch.empty(shape, dtype=dtype)
        buffer, offset = place
        return torch.frombuffer(buffer.numpy(), dtype=dtype, count=count, offset=offset).view(shape)

    def _place(self, size: int) -> tuple[torch.Tensor, int] | None:
        """A buffer with room for `size` bytes, and where they begin; None if no more memory can be pinned."""
        for number, buffer in enumerate(self._buffers):
            begin = -(-self._used[number] // ALIGNED) * ALIGNED
            if begin + size <= len(buffer):
                self._used[number] = begin + size
                return buffer, begin
        wanted = max(size, min(SEGMENT, max(LEAST, sum(map(len, self._buffers)))))
        made = self._device.pinned(1 << (wanted - 1).bit_length())
        if made is None:
            return None
        self._buffers.append(made)
        self._used.append(size)
        return made, 0
