"""Arguments and results of a step on their way between the ranks of one pipeline.

Tensors travel from device to device through the pipeline's own process group: NCCL carries those on GPUs, without a copy
on the host and without waiting for the GPU, and Gloo those on the CPU. What they look like, and all that is no tensor,
goes ahead through Gloo.
"""

from __future__ import annotations

import io
import pickle
import types
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from algorun_train.errors import UserError
from algorun_train.parallel import trees
from algorun_train.ranks import device_copies
from smdistributed.script_types import Given, Result

from .session import Session, session

SMALL = 1024  # bytes; tensors of the CPU up to that travel inside the pickle
TOGETHER = 64 * 1024  # bytes; tensors of one device up to that travel in one message: each costs more than its bytes
CPU = torch.device("cpu")


class _Pickler(pickle.Pickler):
    """Leaves out what every rank has (the model, the optimizer) and large tensors, which travel by themselves."""

    def __init__(self, file: io.BytesIO, here: Session) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._here = here
        self.tensors: list[torch.Tensor] = []

    def persistent_id(self, value: Given) -> Result:
        if value is self._here.model and value is not None:
            return "model"
        if value is self._here.optimizer and value is not None:
            return "optimizer"
        if isinstance(value, torch.Tensor) and (value.nbytes > SMALL or value.device.type != "cpu"):
            here = CPU if value.device.type == "cpu" else self._here.axes.device
            self.tensors.append(value.detach().to(here).contiguous().resolve_conj().resolve_neg())
            return len(self.tensors) - 1
        return None


class _Probe(_Pickler):
    """Goes through a value that cannot be pickled, in search of tensors. What it writes is of no use."""

    found = False

    def persistent_id(self, value: Given) -> Result:
        self.found = self.found or isinstance(value, torch.Tensor)
        return 0 if isinstance(value, torch.Tensor) else super().persistent_id(value)

    def reducer_override(self, value: Given) -> Result:
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

    def persistent_load(self, key: Given) -> Result:
        return getattr(self._here, key) if isinstance(key, str) else self._tensors[key]


def packed(value: Given) -> tuple[bytes, list[torch.Tensor]]:
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
    arguments: dict[str, Given], random: list[tuple[bytes, ...]], own: frozenset[str]
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


def _is_sendable(value: Given) -> bool:
    try:
        packed(value)
    except UserError:
        return False
    return True


def _has_tensors(value: Given) -> bool:
    """Whether there are any in it, also where a function has kept them; True where that cannot be seen."""
    probe = _Probe(io.BytesIO(), session())
    try:
        probe.dump(value)
    except Exception:
        return True
    return probe.found


def unpacked(text: bytes, tensors: Sequence[torch.Tensor]) -> Result:
    """The inverse of `packed`, with the tensors on this rank's device."""
    here = session()
    device = here.axes.device
    value = _Unpickler(io.BytesIO(text), here, [device_copies.to_device(tensor, device) for tensor in tensors]).load()
    return trees.mapped(value, lambda tensor: device_copies.to_device(tensor, device))


def _announcement(text: bytes, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    told = pickle.dumps(([(tuple(t.shape), t.dtype, t.device.type == "cpu") for t in tensors], text))
    return torch.tensor([len(told)]), torch.frombuffer(bytearray(told), dtype=torch.uint8)


def _announced(told: torch.Tensor) -> tuple[list[torch.Tensor], bytes]:
    """Where the tensors arrive: on the device where they come from one."""
    looks, text = pickle.loads(told.numpy().tobytes())
    device = session().axes.device
    return [torch.empty(shape, dtype=dtype, device=CPU if cpu else device) for shape, dtype, cpu in looks], text


def _in_messages(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The bytes of the tensors, since NCCL does not know all types, and which of them travel together."""
    flat = [tensor.reshape(-1).view(torch.uint8) for tensor in tensors if tensor.numel()]
    small = [
        [each for each in flat if len(each) <= TOGETHER and (each.device.type == "cpu") is cpu] for cpu in (True, False)
    ]
    return [*filter(None, small), *([each] for each in flat if len(each) > TOGETHER)]


def _outgoing(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in _in_messages(tensors)]


def _fill(tensors: Sequence[torch.Tensor], arrive: Callable[[torch.Tensor], object]) -> None:
    """Fills `tensors` with what arrives in the messages that `_outgoing` makes of tensors like them."""
    for parts in _in_messages(tensors):
        if len(parts) == 1:
            arrive(parts[0])
            continue
        sizes = [len(part) for part in parts]
        message = torch.empty(sum(sizes), dtype=torch.uint8, device=parts[0].device)
        arrive(message)
        for part, content in zip(parts, message.split(sizes), strict=True):
            part.copy_(content)


def send(value: tuple[bytes, list[torch.Tensor]], to: int) -> list[dist.Work]:
    """Sends what is packed to a rank of the pipeline without waiting; the works have to be waited for."""
    group = session().axes.pp_group
    parts = [*_announcement(*value), *_outgoing(value[1])]
    works = [dist.isend(part, group=group, group_dst=to) for part in parts]
    return [work for work in works if work is not None]


def receive(source: int) -> Result:
    """What a rank of the pipeline has sent with `send`."""
    group = session().axes.pp_group
    size = torch.empty(1, dtype=torch.int64)
    dist.recv(size, group=group, group_src=source)
    told = torch.empty(int(size), dtype=torch.uint8)
    dist.recv(told, group=group, group_src=source)
    tensors, text = _announced(told)
    _fill(tensors, lambda message: dist.recv(message, group=group, group_src=source))
    return unpacked(text, tensors)


def share(value: Given, source: int) -> Result:
    """The `value` of one rank of the pipeline on all of them; errors of packing it are raised on all."""
    here = session()
    group, mine = here.axes.pp_group, here.axes.pp_rank == source
    text, error = b"", None
    tensors: list[torch.Tensor] = []
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
    if mine:
        for message in _outgoing(tensors):
            dist.broadcast(message, group=group, group_src=source)
        return value
    tensors, text = _announced(told)
    _fill(tensors, lambda message: dist.broadcast(message, group=group, group_src=source))
    return unpacked(text, tensors)
