"""Where a model can be cut, as a search has found and tried it: names, shapes and ticks, no weights and no modules.

A search runs the whole model many times, forward and backward. One rank does that and tells the others, which make the
same stages of their own copies of the model without a pass of it.
"""

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from algorun_train.errors import UserError
from algorun_train.parallel.segments import TensorSpec
from algorun_train.parallel.trees import arguments

from . import boundary, verify_cut
from .recorder import Call, Recording, record
from .stage import Place
from .verify_cut import Crossing


@dataclass(frozen=True, slots=True)
class Proof:
    """All that stages are made of beside the model and its example."""

    recording: Recording
    """the forward pass, as `needed` leaves it"""
    places: tuple[Place, ...]
    units: tuple[str, ...]
    """modules called once that segments consist of, in execution order"""
    crossings: tuple[Crossing, ...]
    """what enters each segment"""
    output: tuple[TensorSpec, ...]
    refused: dict[str, str]
    """why the model cannot be cut at other units"""


def needed(recording: Recording, places: Sequence[Place]) -> Recording:
    """What stages between these places need of a recording: calls, uses, and the results of the calls that they skip."""
    skipped = {call.name for place in places for call in boundary.before(recording, place.tick, place.inputs)}
    calls = _copied(recording.calls, lambda call: call.result if call.name in skipped else None)
    return Recording(calls, [], [], recording.uses, recording.changed, [], recording.anew)


def _copied(calls: Sequence[Call], result: Callable[[Call], Any]) -> list[Call]:
    """The same calls with other results, and without their arguments."""
    copies: dict[int, Call] = {}
    for call in calls:
        parent = None if call.parent is None else copies[id(call.parent)]
        copies[id(call)] = own = replace(call, parent=parent, arguments=[], result=result(call), children=[])
        if parent is not None:
            parent.children.append(own)
    return list(copies.values())


class _Pickler(pickle.Pickler):
    """Refuses modules and tensors with values: an object among the results may hold some, and they would be large."""

    def persistent_id(self, value: Any) -> None:
        if isinstance(value, nn.Module) or (isinstance(value, torch.Tensor) and not value.is_meta):
            raise pickle.PicklingError(f"a {type(value).__name__} among the results of modules")


def packed(proof: Proof) -> bytes:
    """The proof for other ranks. Where a module's result cannot be pickled, no results are sent, and each
    other rank runs one forward pass to get its own."""
    try:
        return _dumped(proof)
    except Exception:  # pickle raises whatever an object's own code does
        calls = _copied(proof.recording.calls, lambda _: _Lacking)
        return _dumped(replace(proof, recording=replace(proof.recording, calls=calls, _once={})))


class _Lacking:
    """Stands for the result of a call that could not be sent."""


def unpacked(data: bytes, model: nn.Module, example: Any) -> Proof:
    """The proof of another rank, which has the same model. One forward pass of the model where results were left behind.

    UserError where the model calls other modules than on the rank with the proof.
    """
    proof: Proof = pickle.loads(data)
    calls = proof.recording.calls
    if all(call.result is not _Lacking for call in calls):
        return proof
    with verify_cut.fixed(model, True):
        own = record(model, *arguments(example)).calls
    if [call.name for call in own] != [call.name for call in calls]:
        raise UserError(
            f"the model {type(model).__name__} calls other modules here than on the rank that has cut it; allowed: the "
            "same calls on all ranks; fix: the same model and the same kind of example on every rank"
        )
    for call, mine in zip(calls, own, strict=True):
        call.result = mine.result
    return proof


def _dumped(proof: Proof) -> bytes:
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(proof)
    return file.getvalue()
