"""Python objects between ranks, as bytes through Gloo. Every wait ends by its group's timeout, with Gloo's error."""

from __future__ import annotations

import io

import torch
import torch.distributed as dist

from algorun_train.errors import UserError
from smdistributed.script_types import Given, Result

from .meeting import everybody, together

CPU = torch.device("cpu")


def packed(value: Given) -> torch.Tensor:
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


def _unpacked(data: torch.Tensor, device: torch.device) -> Result:
    """The object; tensors that were on a GPU come to `device`, which is the receiver's own."""
    file = io.BytesIO(data.numpy().tobytes())
    # Not weights_only: the bytes are from a rank of this job, which runs the same code.
    return torch.load(
        file, map_location=lambda storage, tag: storage if tag == "cpu" else _moved(storage, device), weights_only=False
    )


def _moved(storage: Given, device: torch.device) -> Result:
    return storage if device.type == "cpu" else storage.cuda(device.index)


def gathered(
    value: Given,
    group: dist.ProcessGroup | None,
    device: torch.device,
    what: str = "",
    patient: bool = False,
) -> list[Result]:
    """Every rank's `value` in the group, by rank; the group is None where this rank is alone in it.

    Tensors of the others that were on GPUs are on `device`; so are this rank's own, since all are copies. `what` names
    the call in errors; these, and `patient`, are those of `together`.
    """
    ranks = dist.get_process_group_ranks(group) if group is not None else ()
    mine = packed(value).numpy().tobytes()
    return [
        _unpacked(torch.frombuffer(bytearray(row), dtype=torch.uint8), device)
        for row in together(ranks, what or "a collective of smdistributed", mine, patient)
    ]


def post(data: torch.Tensor, receivers: list[int]) -> None:
    """Sends to all at once and waits until each has taken it."""
    for message in (torch.tensor([len(data)]), data):
        for work in [dist.isend(message, to, group=everybody()) for to in receivers]:
            if work is not None:  # a rank outside of the group has none
                work.wait()


def take(source: int, device: torch.device) -> Result:
    """What rank `source` of the job sends by `post`; tensors that were on a GPU come to `device`."""
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, source, group=everybody())
    data = torch.empty(int(size), dtype=torch.uint8)
    dist.recv(data, source, group=everybody())
    return _unpacked(data, device)
