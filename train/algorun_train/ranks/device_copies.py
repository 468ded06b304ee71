"""Copies of small data between the host's memory and a GPU that do not wait for the work that is queued on the GPU.

The host fills a queue of work ahead of the GPU. Two kinds of copies make the host wait until that queue is empty: copies
from ordinary (not pinned) memory, and copies whose result the host needs at once. Then the GPU waits for new work.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import torch

About = TypeVar("About")


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` on `device`; `tensor` itself if it is there already.

    A copy to a GPU goes through pinned memory, so the caller may change `tensor` at once. torch reuses the pinned memory
    only after the GPU has read it (CachingHostAllocator). For a tensor that requires a gradient the host waits for the
    copy, and the gradient flows through it.
    """
    if device.type != "cuda" or tensor.device.type != "cpu" or tensor.requires_grad or tensor.layout != torch.strided:
        return tensor.to(device)
    pinned = torch.empty_like(tensor, pin_memory=True)  # pin_memory() refuses expanded tensors
    return pinned.copy_(tensor).to(device, non_blocking=True)


def host_buffer(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An empty tensor on the host, pinned if `device` is a GPU. Fill it, then call `.to(device, non_blocking=True)` once."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


class ReadBack(Generic[About]):
    """Reads a GPU's numbers one turn late: by then they have arrived, and the host does not wait for the GPU.

    Each call of `turn` is one turn. Numbers on the CPU are returned in the same turn. Ranks that have made the same
    number of calls read the numbers of the same turn.
    """

    def __init__(self) -> None:
        self._sent: tuple[torch.Tensor, torch.cuda.Event, About] | None = None

    def turn(self, table: torch.Tensor, about: About) -> tuple[list[float], About] | None:
        """Sends `table` (`[numbers]`, on any device) to the host. Returns the numbers and the `about` of the turn before.

        Returns None in the first turn. If `table` is on the CPU, returns its own numbers and this `about`.
        """
        if table.device.type == "cpu":
            return table.tolist(), about
        before = self._sent
        self._sent = _on_its_way(table), _event(), about
        if before is None:
            return None
        there, arrived, then = before
        arrived.synchronize()
        return there.tolist(), then


def _on_its_way(table: torch.Tensor) -> torch.Tensor:
    return table.to("cpu", non_blocking=True)  # into pinned memory: torch takes it for copies from a GPU


def _event() -> torch.cuda.Event:
    """An event that occurs when the device reaches this place in its queue."""
    event = torch.cuda.Event()
    event.record()
    return event
