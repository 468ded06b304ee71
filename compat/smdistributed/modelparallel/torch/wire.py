"""What the ranks of one pipeline tell each other around a step: what they call, its arguments and its results."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from .entry import Fit, trees
from .session import Session, UserError, session

HEADER_BYTES = 10_240
LONGEST = 1200  # characters of an error in a header; JSON may take six bytes for one
SMALL = 1024  # bytes; tensors up to that travel inside the pickle


@dataclass(frozen=True, slots=True)
class Header:
    """What one rank is about to do."""

    rank: int
    function: str
    training: bool
    gradients: bool
    fit: tuple[bool, int, int]
    """of the rank with the first stage: how its batch goes through the stages"""
    error: str = ""


def agree(mine: Header) -> Fit:
    """How the batch goes through the stages, when all ranks of the pipeline call the same function.

    UserError on all of them when they do not, or one has an error.
    """
    group = session().axes.pp_group
    assert group is not None
    text = json.dumps(asdict(mine)).encode()
    flat = torch.zeros(HEADER_BYTES, dtype=torch.uint8)
    flat[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    rows = [torch.empty_like(flat) for _ in range(dist.get_world_size(group))]
    try:
        dist.all_gather(rows, flat, group=group)
    except RuntimeError as error:
        raise UserError(
            f"{mine.function}: another rank of this pipeline has ended or failed while rank {mine.rank} calls it; every "
            "@smp.step function has to be called on all ranks of a pipeline, also for evaluation; "
            "fix: call it on every rank, not on rank 0 alone"
        ) from error
    found = [Header(**json.loads(row.numpy().tobytes().rstrip(b"\0"))) for row in rows]
    if broken := next((each.error for each in found if each.error), None):
        raise UserError(broken)
    if len({each.function for each in found}) > 1:
        calls = ", ".join(f"rank {each.rank} calls {each.function}" for each in found)
        raise UserError(
            f"the ranks of one pipeline call different @smp.step functions: {calls}; every one has to be called on all "
            "ranks of a pipeline, also for evaluation; fix: call it on every rank, not on rank 0 alone"
        )
    if len({(each.training, each.gradients) for each in found}) > 1:
        raise UserError(
            f"{mine.function}: the model is in training, or under torch.no_grad, on some ranks of this pipeline and not on "
            "others; fix: the same on all of them"
        )
    return Fit(*found[0].fit)


def header(function: str, is_training: bool, fit: Fit, error: str) -> Header:
    form = (fit.anew, fit.pieces, fit.rows)
    return Header(session().mesh.rank, function[:200], is_training, torch.is_grad_enabled(), form, error[:LONGEST])


class _Pickler(pickle.Pickler):
    """Leaves out what every rank has (the model, the optimizer) and large tensors, which travel by themselves."""

    def __init__(self, file: io.BytesIO, here: Session) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._here = here
        self.tensors: list[torch.Tensor] = []

    def persistent_id(self, value: Any) -> Any:
        if value is self._here.model and value is not None:
            return "model"
        if value is self._here.optimizer and value is not None:
            return "optimizer"
        if isinstance(value, torch.Tensor) and (value.nbytes > SMALL or value.device.type != "cpu"):
            self.tensors.append(value.detach().to("cpu").contiguous())
            return len(self.tensors) - 1
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, here: Session, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(file)
        self._here, self._tensors = here, tensors

    def persistent_load(self, key: Any) -> Any:
        return getattr(self._here, key) if isinstance(key, str) else self._tensors[key]


def packed(value: Any) -> tuple[bytes, list[torch.Tensor]]:
    """`value` as bytes and the tensors in it. UserError for what cannot be sent."""
    file = io.BytesIO()
    pickler = _Pickler(file, session())
    try:
        pickler.dump(value)
    except Exception as error:
        raise UserError(
            f"an argument or result of an @smp.step function cannot be sent to another rank ({error}); allowed: what "
            "pickle takes; fix: use a global variable, or make the object inside the function"
        ) from error
    return file.getvalue(), pickler.tensors


def unpacked(text: bytes, tensors: Sequence[torch.Tensor]) -> Any:
    """The inverse of `packed`, with the tensors on this rank's device."""
    here = session()
    value = _Unpickler(io.BytesIO(text), here, [tensor.to(here.axes.device) for tensor in tensors]).load()
    return trees.mapped(value, lambda tensor: tensor.to(here.axes.device))


def _announcement(text: bytes, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    told = pickle.dumps(([(tuple(t.shape), t.dtype) for t in tensors], text))
    return torch.tensor([len(told)]), torch.frombuffer(bytearray(told), dtype=torch.uint8)


def _announced(told: torch.Tensor) -> tuple[list[torch.Tensor], bytes]:
    shapes, text = pickle.loads(told.numpy().tobytes())
    return [torch.empty(shape, dtype=dtype) for shape, dtype in shapes], text


def send(value: tuple[bytes, list[torch.Tensor]], to: int) -> list[dist.Work]:
    """Sends what is packed to a rank of the pipeline without waiting; the works have to be waited for."""
    group = session().axes.pp_group
    parts = [*_announcement(*value), *value[1]]
    works = [dist.isend(part, group=group, group_dst=to) for part in parts if part.numel()]
    return [work for work in works if work is not None]


def receive(source: int) -> Any:
    """What a rank of the pipeline has sent with `send`."""
    group = session().axes.pp_group
    size = torch.empty(1, dtype=torch.int64)
    dist.recv(size, group=group, group_src=source)
    told = torch.empty(int(size), dtype=torch.uint8)
    dist.recv(told, group=group, group_src=source)
    tensors, text = _announced(told)
    for tensor in tensors:
        if tensor.numel():
            dist.recv(tensor, group=group, group_src=source)
    return unpacked(text, tensors)


def share(value: Any, source: int) -> Any:
    """The `value` of one rank of the pipeline on all of them; errors of packing it are raised on all."""
    here = session()
    group, mine = here.axes.pp_group, here.axes.pp_rank == source
    text, tensors, error = b"", [], None
    if mine:
        try:
            text, tensors = packed(value)
        except UserError as failed:
            error = failed
    size, told = _announcement(text, tensors) if error is None else (torch.tensor([-1]), torch.empty(0))
    dist.broadcast(size, group=group, group_src=source)
    if int(size) < 0:
        raise error or UserError(f"the results of rank {source} of this pipeline cannot be sent; its error says why")
    if not mine:
        told = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(told, group=group, group_src=source)
    if not mine:
        tensors, text = _announced(told)
    for tensor in tensors:
        if tensor.numel():
            dist.broadcast(tensor, group=group, group_src=source)
    return value if mine else unpacked(text, tensors)
