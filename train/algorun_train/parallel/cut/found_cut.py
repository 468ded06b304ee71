"""A verified cut as data: names, shapes and ticks, no weights and no modules.

A search runs the uncut model many times, forward and backward. One rank does that and sends the result to the others,
which build the same stages from their own models without running them.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.parallel.model.segments import TensorSpec
from algorun_train.parallel.model.trees import arguments

from . import boundary, verify_cut
from .partial_forward import ForwardPlace
from .recorder import Call, Recording, record
from .verify_cut import Crossing


@dataclass(frozen=True, slots=True)
class FoundCut:
    """Everything that stages are built from, except the model and its example."""

    recording: Recording
    """the forward pass, trimmed by `trimmed`"""
    places: tuple[ForwardPlace, ...]
    """the cut places between the segments"""
    units: tuple[str, ...]
    """the units of all segments, in execution order"""
    crossings: tuple[Crossing, ...]
    """what enters each segment"""
    output: tuple[TensorSpec, ...]
    """the tensors in the model's output"""
    refused: dict[str, str]
    """why the model cannot be cut at other units, by unit"""


def trimmed(recording: Recording, places: Sequence[ForwardPlace]) -> Recording:
    """The recording without what stages between these places do not need. They need calls, uses, marks, and the results
    of the calls that they skip."""
    skipped = {call.name for place in places for call in boundary.before(recording, place.tick, place.inputs)}
    calls = _copied(recording.calls, lambda call: call.result if call.name in skipped else None)
    return Recording(calls, [], [], recording.uses, recording.changed, [], recording.anew, recording.recomputed)


def _copied(calls: Sequence[Call], result: Callable[[Call], object]) -> list[Call]:
    """Copies of the calls with other results and without arguments."""
    copies: dict[int, Call] = {}
    for call in calls:
        parent = None if call.parent is None else copies[id(call.parent)]
        copies[id(call)] = own = replace(call, parent=parent, arguments=[], result=result(call), children=[])
        if parent is not None:
            parent.children.append(own)
    return list(copies.values())


class _Pickler(pickle.Pickler):
    """Refuses modules and tensors with values: an object among the results may contain some, and they would be large."""

    def persistent_id(self, value: object) -> None:
        if isinstance(value, nn.Module) or (isinstance(value, torch.Tensor) and not value.is_meta):
            raise pickle.PicklingError(f"a {type(value).__name__} among the results of modules")


def packed(found: FoundCut) -> bytes:
    """The cut for other ranks. If a module's result cannot be pickled, no results are sent, and each other rank runs one
    forward pass to get its own."""
    try:
        return _dumped(found)
    except Exception:  # pickle raises whatever an object's own code does
        calls = _copied(found.recording.calls, lambda _: _NotSent)
        return _dumped(replace(found, recording=replace(found.recording, calls=calls, _once={})))


class _NotSent:
    """Stands for the result of a call that could not be sent."""


def unpacked(data: bytes, model: nn.Module | Callable[[], nn.Module], example: object) -> FoundCut:
    """The cut that another rank has packed, for an equal model here. Runs one forward pass if results were not sent; the
    model, if it is a function, is then built for it.

    Raises UserError if the model calls other modules here than on the rank that has cut it.
    """
    found: FoundCut = pickle.loads(data)
    calls = found.recording.calls
    if all(call.result is not _NotSent for call in calls):
        return found
    model = model if isinstance(model, nn.Module) else model()
    with verify_cut.fixed(model, True):
        own = record(model, *arguments(example)).calls
    if [call.name for call in own] != [call.name for call in calls]:
        raise UserError(
            f"the model {type(model).__name__} calls other modules here than on the rank that has cut it; allowed: the "
            "same calls on all ranks; fix: the same model and the same kind of example on every rank"
        )
    for call, mine in zip(calls, own, strict=True):
        call.result = mine.result
    return found


def _dumped(found: FoundCut) -> bytes:
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(found)
    return file.getvalue()
