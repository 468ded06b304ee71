"""Which tensors lie in the same memory, and copies of tensors that share memory as the tensors do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

LARGEST = 16  # bytes of an element


class Used(NamedTuple):
    """The bytes that a tensor uses, by their addresses."""

    begin: int
    end: int
    """of the byte after the last"""
    place: int
    """of the tensor among all tensors"""
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Region:
    """One piece of memory: that of one tensor, or of several whose bytes lie within each other's."""

    used: list[Used]
    """by their first bytes"""
    begin: int
    """the address that offsets count from: that of the first byte, or a few bytes before it"""
    end: int

    def offset(self, one: Used) -> int:
        """Where the tensor begins in the region, in elements of its own type."""
        return (one.begin - self.begin) // one.tensor.element_size()

    def memory(self) -> torch.Tensor:
        """uint8 `[bytes]`: the memory itself, or a copy if no storage of the tensors has all of it."""
        longest = max(self.used, key=lambda each: each.end).tensor.untyped_storage()
        if longest.data_ptr() <= self.begin:
            return _bytes(longest, self.begin, self.end)
        whole = torch.zeros(self.end - self.begin, dtype=torch.uint8, device=longest.device)
        for each in self.used:
            part = _bytes(each.tensor.untyped_storage(), each.begin, each.end)
            whole[each.begin - self.begin : each.end - self.begin] = part
        return whole


def regions(tensors: Sequence[torch.Tensor]) -> list[Region]:
    """The memory of `tensors`, which are dense. No two regions share a byte."""
    devices: dict[object, list[Used]] = {}
    for place, tensor in enumerate(tensors):
        storage, size = tensor.untyped_storage().data_ptr(), tensor.element_size()
        begin, end = _extent(tensor)
        if not storage:  # memory without an address, such as that of no elements, is nobody else's
            key: object = -1 - place
        elif (
            storage + begin
        ) % size:  # offsets count elements: such a tensor is seen beside those of its storage alone
            key = (tensor.device, storage)
        else:
            key = tensor.device
        devices.setdefault(key, []).append(Used(storage + begin, storage + end, place, tensor))
    return [_region(group) for used in devices.values() for group in _overlapping(used)]


def copies(tensors: Sequence[torch.Tensor], wanted: Sequence[bool]) -> list[torch.Tensor]:
    """Copies of the tensors that are `wanted`, and of those that share memory with one of them.

    Copies share memory as the tensors do: a change in place of one is seen in the others, and counted in their versions.
    If several differ in how they lie in it, or one has an element twice, copies have no graph.
    Other tensors are returned themselves. So are weights: torch lets nobody change a leaf in place that requires a gradient.
    """
    found = list(tensors)
    may_go = [want and not _is_weight(tensor) for tensor, want in zip(tensors, wanted, strict=True)]
    if not any(may_go):
        return found
    dense = [place for place, tensor in enumerate(tensors) if not (_is_weight(tensor) or _is_opaque(tensor))]
    for region in regions([tensors[place] for place in dense]):
        places = [dense[one.place] for one in region.used]
        if any(may_go[place] for place in places):
            for place, copy in zip(places, _copied(region), strict=True):
                found[place] = copy
    others: dict[int, torch.Tensor] = {}
    for place, tensor in enumerate(tensors):
        if may_go[place] and _is_opaque(tensor):
            found[place] = others.setdefault(id(tensor), tensor.clone())
    return found


def _is_weight(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and tensor.is_leaf


def _is_opaque(tensor: torch.Tensor) -> bool:
    """Whether it does not tell its memory: sparse and nested tensors. No other one is seen to share it."""
    return tensor.layout != torch.strided or tensor.is_nested


def _copied(region: Region) -> list[torch.Tensor]:
    """Copies of its tensors, in their order."""
    looks = [(one.begin, one.tensor.dtype, one.tensor.shape, one.tensor.stride(), _flipped(one)) for one in region.used]
    if looks.count(looks[0]) == len(looks) and not _may_meet_itself(region.used[0].tensor):
        return [region.used[0].tensor.clone()] * len(looks)
    given = region.memory()
    memory = given.new_empty(-(-len(given) // LARGEST) * LARGEST)  # `view` wants whole elements of every type
    memory[: len(given)] = given
    return [_seen(memory, region, one) for one in region.used]


def _may_meet_itself(tensor: torch.Tensor) -> bool:
    """False if no two of its elements are one, as they are in an expanded tensor."""
    reach = 0
    for step, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1 and step <= reach:
            return True
        reach += (length - 1) * step
    return False


def _seen(memory: torch.Tensor, region: Region, one: Used) -> torch.Tensor:
    """A tensor as it lies in a region, in other memory."""
    tensor = one.tensor
    seen = memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), region.offset(one))
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        seen = seen.as_subclass(type(tensor))
    conjugate, negative = _flipped(one)
    seen = seen.conj() if conjugate else seen
    return torch._neg_view(seen) if negative else seen


def _flipped(one: Used) -> tuple[bool, bool]:
    """Whether the memory is read as its conjugate, and as its negative."""
    return one.tensor.is_conj(), one.tensor.is_neg()


def _region(group: list[Used]) -> Region:
    first, largest = group[0].begin, max(group, key=lambda each: each.tensor.element_size())
    begin = first - (first - largest.begin) % largest.tensor.element_size()  # every offset is a number of elements
    return Region(group, begin, max(each.end for each in group))


def _overlapping(used: list[Used]) -> list[list[Used]]:
    groups: list[list[Used]] = []
    end = -1
    for each in sorted(used, key=lambda one: (one.begin, one.place)):
        if each.begin < end:
            groups[-1].append(each)
        else:
            groups.append([each])
        end = max(end, each.end)
    return groups


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of its storage that a tensor uses, and the one after the last."""
    size, first = tensor.element_size(), int(tensor.storage_offset())
    if not tensor.numel():
        return 0, 0
    steps = sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first * size, (first + steps + 1) * size


def _bytes(storage: torch.UntypedStorage, begin: int, end: int) -> torch.Tensor:
    memory = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return memory.set_(storage, begin - storage.data_ptr(), (end - begin,), (1,))
