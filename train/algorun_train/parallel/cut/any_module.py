"""Cuts any module into segments without a tracer: the user's own forward runs in every stage.

from algorun_train.parallel.cut.any_module import cut

model = Net()                                      # an nn.Module on the CPU, or on one GPU
images = torch.randn(8, 3, 32, 32)                 # one microbatch, in the shape that training will use
cutting = cut(model, images, stages=2)             # raises UserError where the model can't be cut
for segment in cutting.segments:
    print(segment.name, segment.entry, len(segment.parameters))
first = cutting.stage(0, 3)                        # segments 0, 1 and 2
second = cutting.stage(3, len(cutting.segments))   # the others
assert torch.equal(second(first(images)), model(images))
optimizer = torch.optim.Adam(second.parameters())  # the model's own parameters, under the model's names
"""

import contextlib
import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import nn

from algorun_train.errors import UserError
from algorun_train.parallel.segments import SegmentSpec
from algorun_train.parallel.trees import arguments, mapped

from . import boundary, value_dependence, verify_cut
from .build import Builder, Trials
from .proof import Proof, needed
from .recorder import Call, Recording, record
from .stage import Place

# Other numbers than the example's: what of a shape depends on the data should change with one of them.
OTHERS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (torch.randn_like, torch.zeros_like, torch.neg)


def cut(model: nn.Module, example: Any, *, stages: int, finest: bool = False, fewer: str = "fewer stages") -> "Cut":
    """Finds every place at which `model` can be split, and proves each one by running the model both ways.

    `example` is one microbatch: a tensor, a tuple of the model's arguments, or a dictionary of its keyword arguments.
    Units are the modules that are called once; one with more parameters than a 1 / (2 x stages) share of the model is
    replaced by the modules that it calls (`finest`: all are), and so are all where the places would be too few.
    Call it under the autocast that training will use: a boundary's dtype is the one that was seen.

    Raises UserError where fewer than `stages` segments are possible. It names the units at which the model can't be
    cut with the reason; `fewer` is what it advises to ask for. The model is run, but stays as it was.
    """
    search = Search(model, example)
    limit = 0.0 if finest else sum(span.bytes for span in search.spans) / (2 * stages)
    places = search.places(search.units(limit))
    if len(places) + 1 < stages and limit:
        places = search.places(search.units(0.0))
    if len(places) + 1 < stages:
        raise UserError(_too_few(model, stages, len(places) + 1, search, fewer))
    return search.cutting(places)


class Cut:
    """The segments of a model; see `cutting.Cutting`. `proof` says where they begin, as the search has found it, or as
    another rank has. `refused` says why the model can't be cut at other units."""

    def __init__(self, model: nn.Module, example: Any, proof: Proof) -> None:
        self._builder = Builder(model, *arguments(example), proof.recording)
        self.proof, self.refused, self.output = proof, proof.refused, proof.output
        self.example = tuple(self._builder.entry)
        members: list[list[str]] = [[] for _ in range(len(proof.places) + 1)]
        for name in proof.units:
            members[boundary.segment_of(proof.recording.once()[name].begin, proof.places)].append(name)
        owned: list[list[str]] = [[] for _ in members]
        for span in self._builder.parameters:
            for number in boundary.segments_of(span, proof.places):
                owned[number].append(span.names[0])
        self.segments = tuple(
            SegmentSpec(units[0], tuple(units), tuple(parameters), crossing.specs)
            for units, parameters, crossing in zip(members, owned, proof.crossings, strict=True)
        )

    def over(self, model: nn.Module) -> "Cut":
        """The same cut of another copy of the model, whose parameters and buffers the stages then have."""
        other = copy.copy(self)
        other._builder = self._builder.over(model)
        return other

    def stage(self, begin: int, end: int) -> nn.Module:
        """Segments begin .. end - 1 as a module; see `cutting.Cutting.stage`."""
        if not 0 <= begin < end <= len(self.segments):
            raise ValueError(f"stage({begin}, {end}) of {len(self.segments)} segments")
        untouched = self.proof.crossings[begin].untouched
        return self._builder.stage(self._builder.model, self.proof.places, begin, end, untouched)


class Search:
    """Looks for the places at which a model can be cut; `refused` says what stood against the others."""

    def __init__(self, model: nn.Module, example: Any) -> None:
        _refuse_unfit(model)
        args, kwargs = arguments(example)
        self._model, self._example = model, example
        self._first = _recorded(model, args, kwargs)
        self._others: list[Recording] = []
        for change in OTHERS:
            with contextlib.suppress(Exception):  # the changed example may be one that the model does not take
                self._others.append(_recorded(model, args, kwargs, change))
        further = []
        if inputs := value_dependence.seen([self._first, *self._others]):
            with contextlib.suppress(Exception):
                other = value_dependence.other(args, kwargs, inputs)
                self._others.append(_recorded(model, *other))
                further.append(other)
        for recording in (recordings := [self._first, *self._others]):
            recording.anew = value_dependence.varying(recordings) if inputs else frozenset()
        builder = Builder(model, args, kwargs, self._first)
        self.spans, self._trials = builder.spans, Trials(builder, further)
        self._units: list[Call] = []
        self.refused: dict[str, str] = {}

    def units(self, limit: float) -> list[Call]:
        """Modules called once, in execution order; see `boundary.units`."""
        return boundary.units(self._first, self.spans, limit)

    def calls(self) -> dict[str, Call]:
        """The call of every module that is called once, by name."""
        return self._first.once()

    def used(self) -> set[str]:
        """Parameters and buffers that the call has used."""
        return {name for name, ticks in self._first.uses.items() if ticks}

    def places(self, units: list[Call], only: Collection[str] | None = None) -> list[Place]:
        """Where the model can be left and entered between successive `units`, tried and found good.

        `only`: not at others than the units of these names.
        """
        self._units, self.refused = units, {}
        wanted = [unit for unit in units[1:] if only is None or unit.name in only]
        kept = self._proven(self._candidates(wanted))
        if any(place.inputs for place in kept.values()):  # some, maybe, for the sake of places that are refused by now
            fewer = self._candidates([unit for unit in wanted if unit.name in kept])
            if any(fewer[name].inputs != kept[name].inputs for name in kept) and not self._fault(fewer):
                kept = fewer
        self.refused = {unit.name: self.refused[unit.name] for unit in units if unit.name in self.refused}
        return list(kept.values())

    def cutting(self, places: Sequence[Place]) -> Cut:
        """The model cut at these places."""
        proof = Proof(
            recording=needed(self._first, places),
            places=tuple(places),
            units=tuple(unit.name for unit in self._units),
            crossings=tuple(self._trials.crossings(places)),
            output=self._trials.output,
            refused=self.refused,
        )
        return Cut(self._model, self._example, proof)

    def _candidates(self, units: list[Call]) -> dict[str, Place]:
        """Places worth trying, by unit. An input that a later one needs crosses at the ones before it as well."""
        found: dict[str, Place] = {}
        carried: frozenset[int] = frozenset()
        for unit in reversed(units):
            inputs = carried | boundary.needed([self._first, *self._others], unit)
            place = boundary.place(self._first, unit, inputs)
            if isinstance(place, str):
                self.refused[unit.name] = place
            elif any(boundary.unstable(self._first, other, place) for other in self._others):
                self.refused[unit.name] = "the shape of what crosses depends on the data"
            elif both := boundary.crossed(place, self.spans):
                shared = ", ".join(" = ".join(span.names) for span in both[:3])
                self.refused[unit.name] = f"{shared} {'is' if len(both) == 1 else 'are'} written to on both sides of it"
            else:
                found[unit.name], carried = place, inputs
        return dict(reversed(found.items()))

    def _proven(self, candidates: dict[str, Place]) -> dict[str, Place]:
        """The candidates at which the model can be split, all at once; `refused` gets what went wrong at the others."""
        if self._fault(candidates) is None:
            return candidates
        alone = {}
        for name, place in candidates.items():
            if reason := self._fault({name: place}):
                self.refused[name] = reason
            else:
                alone[name] = place
        if self._fault(alone) is None:
            return alone
        kept: dict[str, Place] = {}
        for name, place in alone.items():
            if reason := self._fault(kept | {name: place}):
                self.refused[name] = reason
            else:
                kept[name] = place
        return kept

    def _fault(self, places: dict[str, Place]) -> str | None:
        return self._trials.fault(list(places.values()))


def _recorded(
    model: nn.Module, args: Any, kwargs: Any, change: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> Recording:
    with verify_cut.fixed(model, True):
        if change:
            args, kwargs = mapped((args, kwargs), lambda tensor: _other(tensor, change))
        return record(model, args, kwargs)


def _other(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Another valid example: other numbers where they are floats, the same ones in another order where they are not."""
    return change(tensor) if tensor.is_floating_point() else tensor.flatten().flip(0).view(tensor.shape)


def _refuse_unfit(model: nn.Module) -> None:
    kind = type(model).__name__
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod"):
            raise UserError(
                f"module {name or kind} is compiled and cannot be cut; allowed: plain modules; "
                "fix: cut first, then compile the stages"
            )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta or isinstance(tensor, nn.parameter.UninitializedTensorMixin):
            raise UserError(
                f"parameter {name} of {kind} has no values yet and the model cannot be cut; allowed: a model with "
                "weights; fix: build it on the CPU (and run a lazy module once)"
            )


def _too_few(model: nn.Module, stages: int, most: int, search: Search, fewer: str) -> str:
    reasons = [f"{unit}: {reason}" for unit, reason in search.refused.items()]
    shown = "; ".join(reasons[:5]) + (f"; and {len(reasons) - 5} more" if len(reasons) > 5 else "")
    return (
        f"{stages} stages of the model {type(model).__name__}, which can be cut into {most} at most (it cannot be cut "
        f"at {shown or 'any unit: it has one'}); allowed: 1 to {most}; fix: ask for {fewer}"
    )
