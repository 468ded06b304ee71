"""Python objects as bytes, with the memory of their tensors beside them. They arrive unchanged on another rank.

Parameters stay Parameters, `requires_grad`, types and strides stay, and tensors that share memory share it there too.
A tensor brings only the part of its memory that it uses: of a few rows, no more than these rows.
"""

from __future__ import annotations

import ctypes
import io
import pickle
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn

from algorun_train.common.errors import UserError

from . import device_copies, tensor_memory
from .tensor_memory import Region

SMALL = 1024  # bytes; regions of the CPU up to that travel with the bytes
SCATTERED = 16  # bytes; fewer are never gathered
CPU = torch.device("cpu")

Known: TypeAlias = Mapping[str, object]
"""objects that every rank has, by name: each rank gets its own"""


class Packed(NamedTuple):
    """An object on its way."""

    data: bytes
    """all but the regions"""
    regions: list[torch.Tensor]
    """memory that travels by itself: uint8 `[bytes]` each, on the CPU or on this rank's device"""


class _Look(NamedTuple):
    """How a tensor lies in a region."""

    region: int
    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool
    is_parameter: bool

    def of(self, regions: Sequence[torch.Tensor]) -> torch.Tensor:
        memory = regions[self.region]
        tensor = torch.empty(0, dtype=self.dtype, device=memory.device)
        tensor.set_(memory.untyped_storage(), self.offset, self.size, self.stride)
        return (
            nn.Parameter(tensor, self.requires_grad) if self.is_parameter else tensor.requires_grad_(self.requires_grad)
        )


class _Region(NamedTuple):
    """One piece of memory: what the receiver has to know."""

    length: int
    """bytes"""
    on_cpu: bool
    data: bytes | None
    """None: it travels by itself"""


def cannot_be_sent(what: str) -> Callable[[object, Exception], str]:
    """A `fault` for `Packing`: its text begins with `what`."""
    return lambda value, error: (
        f"{what}: an object of type {type(value).__name__} cannot be sent: {error}; allowed: what pickle takes; "
        "fix: send its data"
    )


@dataclass(frozen=True, slots=True)
class Packing:
    """How objects are packed and unpacked. Alike on all ranks that send each other objects."""

    device: torch.device
    """the one that this rank computes on: tensors of other ranks' GPUs arrive on it"""
    fault: Callable[[object, Exception], str]
    """fault(value, error) is the text of the UserError for a value that cannot be packed"""
    known: Known = field(default_factory=dict)
    """objects that are not packed. They may be added later, under the same names on all ranks"""
    direct: bool = False
    """large tensors travel by themselves, from device to device, and all arrive on `device`. Otherwise all go through the
    host within the bytes, and tensors of the CPU stay there"""

    def pack(self, value: object) -> Packed:
        """`value`, to be unpacked on another rank. Raises UserError for a value that cannot be packed."""
        file = io.BytesIO()
        pickler = _Pickler(file, self.known)
        own: list[torch.Tensor] = []
        try:
            pickler.dump(value)
            memory, looks = _laid_out(pickler.tensors)
            regions = [self._region(each, own) for each in memory]
        except Exception as error:  # pickle raises whatever an object's own code does, torch what a device says
            raise UserError(self.fault(value, error)) from error
        return Packed(pickle.dumps((looks, regions, file.getvalue())), own)

    def _region(self, memory: torch.Tensor, own: list[torch.Tensor]) -> _Region:
        on_cpu = memory.device.type == "cpu"
        if self.direct and not (on_cpu and len(memory) <= SMALL):
            own.append(memory if on_cpu else memory.to(self.device))
            return _Region(len(memory), on_cpu, None)
        here = memory.cpu()
        # Not by numpy(): torch never again resizes memory that NumPy has seen.
        return _Region(len(memory), on_cpu, ctypes.string_at(here.data_ptr(), len(here)))

    def unpack(self, data: bytes, fill: Callable[[list[torch.Tensor]], object] = lambda _: None) -> Any:
        """The object that another rank has packed. `fill` fills tensors like Packed.regions, in their order."""
        looks, regions, text = pickle.loads(data)
        own = [
            torch.empty(each.length, dtype=torch.uint8, device=CPU if each.on_cpu else self.device)
            for each in regions
            if each.data is None
        ]
        fill(own)
        there = iter(own)
        memory = [self._placed(each, there) for each in regions]
        return _Unpickler(io.BytesIO(text), self.known, [look.of(memory) for look in looks]).load()

    def _placed(self, region: _Region, own: Any) -> torch.Tensor:  # Any: an iterator over the filled ones
        if region.data is None:
            memory = next(own)
        else:
            memory = torch.empty(len(region.data), dtype=torch.uint8, device=CPU)
            ctypes.memmove(memory.data_ptr(), region.data, len(region.data))
        return device_copies.to_device(memory, self.device if self.direct or not region.on_cpu else CPU)

    def must_be_sent(self, value: object) -> bool:
        """False for a value that cannot be packed and holds no tensor, also where a function has kept one; True if it
        cannot be seen whether it does."""
        try:
            self.pack(value)
        except UserError:
            probe = _Probe(io.BytesIO(), self.known)
            try:
                probe.dump(value)
            except Exception:
                return True
            return probe.found
        return True


class _Pickler(pickle.Pickler):
    """Leaves out what every rank has, and tensors: their places in `tensors` stand for them."""

    def __init__(self, file: io.BytesIO, known: Known) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._names = {id(thing): name for name, thing in known.items()}
        self._places: dict[int, int] = {}
        self.tensors: list[torch.Tensor] = []
        self._kept: list[object] = []  # an id belongs to another object once its object has gone

    def persistent_id(self, value: Any) -> Any:  # as pickle has it
        if id(value) in self._names:
            return self._names[id(value)]
        if isinstance(value, torch.Tensor):
            return self._place(value, value) if _is_plain(value) else None
        if isinstance(value, torch.storage.TypedStorage):  # of a tensor that is not plain
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # it is deprecated, and torch still pickles by it
                memory = torch.empty(0, dtype=torch.uint8, device=value.device)
                return self._place(value, memory.set_(value.untyped())), value.dtype
        return None

    def _place(self, value: object, tensor: torch.Tensor) -> int:
        place = self._places.setdefault(id(value), len(self.tensors))
        if place == len(self.tensors):
            self._kept.append(value)
            self.tensors.append(tensor)
        return place


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its memory, type and strides are all that there is to it. Others pickle takes apart, into plain ones."""
    if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout != torch.strided or tensor.__dict__:
        return False
    if tensor.device.type == "meta":  # it has no memory
        return False
    return not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())


class _Probe(_Pickler):
    """Goes through a value that cannot be pickled, in search of tensors. What it writes is of no use."""

    found = False

    def persistent_id(self, value: Any) -> Any:  # as pickle has it
        self.found = self.found or isinstance(value, torch.Tensor)
        return 0 if isinstance(value, torch.Tensor) else super().persistent_id(value)

    def reducer_override(self, value: Any) -> Any:  # as pickle has it
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
    def __init__(self, file: io.BytesIO, known: Known, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(file)
        self._known, self._tensors = known, tensors

    def persistent_load(self, key: Any) -> Any:  # as pickle has it
        if isinstance(key, str):
            return self._known[key]
        if isinstance(key, int):
            return self._tensors[key]
        place, dtype = key
        storage: Any = torch.storage.TypedStorage  # its own arguments have no types
        return storage(wrap_storage=self._tensors[place].untyped_storage(), dtype=dtype, _internal=True)


def _laid_out(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[_Look]]:
    """The memory that `tensors` use, uint8 `[bytes]` for each piece, and how each tensor lies in one."""
    memory: list[torch.Tensor] = []
    looks: dict[int, _Look] = {}
    for found in tensor_memory.regions(tensors):
        region = _dense(found)
        for one, own in zip(found.used, region.used, strict=True):
            given = one.tensor
            size, stride = tuple(given.shape), tuple(own.tensor.stride())
            is_parameter = type(given) is nn.Parameter
            looks[one.place] = _Look(
                len(memory), given.dtype, region.offset(own), size, stride, given.requires_grad, is_parameter
            )
        memory.append(region.memory())
    return memory, [looks[place] for place in range(len(tensors))]


def _dense(region: Region) -> Region:
    """Of a tensor that lies scattered, such as one column, its elements alone."""
    if len(region.used) > 1 or region.end - region.begin <= 2 * max(region.used[0].tensor.nbytes, SCATTERED):
        return region
    return tensor_memory.regions([region.used[0].tensor.detach().contiguous()])[0]
