"""Small data between host and device, without the host waiting for the work that is queued on a GPU.

A GPU works through a queue that the host fills ahead of it. A copy from ordinary memory, or one whose result the host
needs at once, makes the host wait until the queue is empty, and then the GPU waits for the host to fill it again.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import torch

About = TypeVar("About")


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` on `device`. Where it is there already, it is `tensor` itself.

    For a GPU a copy in pinned memory is sent, so `tensor` may be changed at once. torch does not use the pinned memory
    again before the GPU has it (CachingHostAllocator). A tensor that requires a gradient keeps it, and is waited for.
    """
    if device.type != "cuda" or tensor.device.type != "cpu" or tensor.requires_grad or tensor.layout != torch.strided:
        return tensor.to(device)
    pinned = torch.empty_like(tensor, pin_memory=True)  # pin_memory() refuses expanded tensors
    return pinned.copy_(tensor).to(device, non_blocking=True)


def host_buffer(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Host memory to fill and to send to `device` once, by `.to(device, non_blocking=True)`: pinned for a GPU."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


class ReadBack(Generic[About]):
    """Reads the numbers of a GPU one turn late, when they have arrived, so that the host need not wait for them.

    Numbers on the CPU are read at once. Each call of `turn` is a turn; ranks that take turns equally often read the
    numbers of the same turn.
    """

    def __init__(self) -> None:
        self._sent: tuple[torch.Tensor, torch.cuda.Event, About] | None = None

    def turn(self, table: torch.Tensor, about: About) -> tuple[list[float], About] | None:
        """Sends `table`, `[numbers]` on any device, to the host; returns the last turn's numbers and its `about`.

        None in the first turn. For a table on the CPU it returns this turn's.
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
    """When the device has come to this place in its queue."""
    event = torch.cuda.Event()
    event.record()
    return event
