"""Arguments and results of a step on their way between the ranks of one pipeline."""

from __future__ import annotations

import io
import pickle
import types
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .session import Session, session
from .shared import UserError, trees

SMALL = 1024  # bytes; tensors up to that travel inside the pickle


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


class _Probe(_Pickler):
    """Goes through a value that cannot be pickled, in search of tensors. What it writes is of no use."""

    found = False

    def persistent_id(self, value: Any) -> Any:
        self.found = self.found or isinstance(value, torch.Tensor)
        return 0 if isinstance(value, torch.Tensor) else super().persistent_id(value)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType):
            kept = [cell.cell_contents for cell in value.__closure__ or ()]
            return list, ((*kept, value.__defaults__, value.__kwdefaults__),)
        self.found = self.found or isinstance(value, types.GeneratorType)  # it may hold some, and does not show them
        try:
            pickle.dumps(value) if isinstance(value, type) else value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        except Exception:  # a lock, a file, a class inside a function: no place for a tensor
            return str, ()
        return NotImplemented


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


def packed_batch(
    arguments: dict[str, Any], random: list[torch.Tensor], own: frozenset[str]
) -> tuple[tuple[bytes, list[torch.Tensor]], frozenset[str]]:
    """A step's arguments for another rank, without those named in `own`, and which names these are from now on.

    What cannot be sent is left out where it holds no tensor: the other rank calls the function too, with its own. A
    tensor could be another one there. UserError for what can neither be sent nor left out.
    """

    def pack(without: frozenset[str]) -> tuple[bytes, list[torch.Tensor]]:
        rest = {name: value for name, value in arguments.items() if name not in without}
        return packed((rest, random, without))

    try:
        return pack(own), own
    except UserError:
        more = own | {name for name, value in arguments.items() if not (_is_sendable(value) or _has_tensors(value))}
        if more == own:
            raise
        return pack(more), more


def _is_sendable(value: Any) -> bool:
    try:
        packed(value)
    except UserError:
        return False
    return True


def _has_tensors(value: Any) -> bool:
    """Whether there are any in it, also where a function has kept them; True where that cannot be seen."""
    probe = _Probe(io.BytesIO(), session())
    try:
        probe.dump(value)
    except Exception:
        return True
    return probe.found


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
