"""Python objects between ranks, as bytes through Gloo. Every wait ends by its group's timeout, with Gloo's error."""

from __future__ import annotations

import io
from typing import Any

import torch
import torch.distributed as dist

from algorun import training

_mesh = training.load("mesh")
UserError = training.load("errors").UserError
CPU = torch.device("cpu")
_messages: dist.ProcessGroup | None = None  # all ranks; what they send each other here meets nothing of a pipeline's


def connect(mesh: Any) -> None:
    """Makes the group that messages go through. On all ranks, once."""
    global _messages
    if mesh.world.distributed:
        _messages = dist.new_group(backend="gloo", timeout=_mesh.COLLECTIVE_TIMEOUT)


def packed(value: Any) -> torch.Tensor:
    """A flat uint8 tensor. UserError for what cannot be pickled."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
    except Exception as error:  # pickle raises whatever an object's own code does
        raise UserError(
            f"smdistributed: an object of type {type(value).__name__} cannot be sent: {error}; "
            "allowed: what pickle takes; fix: send its data"
        ) from None
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def _unpacked(data: torch.Tensor, device: torch.device) -> Any:
    """The object; tensors that were on a GPU come to `device`, which is the receiver's own."""
    file = io.BytesIO(data.numpy().tobytes())
    # Not weights_only: the bytes are from a rank of this job, which runs the same code.
    return torch.load(
        file, map_location=lambda storage, tag: storage if tag == "cpu" else _moved(storage, device), weights_only=False
    )


def _moved(storage: Any, device: torch.device) -> Any:
    return storage if device.type == "cpu" else storage.cuda(device.index)


def gathered(value: Any, group: dist.ProcessGroup | None, device: torch.device) -> list[Any]:
    """Every rank's `value` in the group, by rank; the group is None where this rank is alone in it.

    Tensors of the others that were on GPUs are on `device`; so are this rank's own, since all are copies.
    """
    if group is None:
        return [_unpacked(packed(value), device)]
    mine = packed(value)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
    dist.all_gather(sizes, torch.tensor([len(mine)]), group=group)
    padded = torch.zeros(max(int(n) for n in sizes), dtype=torch.uint8)
    padded[: len(mine)] = mine
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=group)
    return [_unpacked(part[: int(n)], device) for part, n in zip(parts, sizes, strict=True)]


def post(data: torch.Tensor, receivers: list[int]) -> None:
    """Sends to all at once and waits until each has taken it."""
    sizes = torch.tensor([len(data)])
    for wait in [dist.isend(sizes, to, group=_messages) for to in receivers]:
        wait.wait()
    for wait in [dist.isend(data, to, group=_messages) for to in receivers]:
        wait.wait()


def take(source: int, device: torch.device) -> Any:
    """What rank `source` of the job sends by `post`; tensors that were on a GPU come to `device`."""
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, source, group=_messages)
    data = torch.empty(int(size), dtype=torch.uint8)
    dist.recv(data, source, group=_messages)
    return _unpacked(data, device)
