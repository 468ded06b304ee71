"""Cuts any module into segments without a tracer: the user's own forward runs in every stage.

from algorun_train.parallel.cut.any_module import cut

model = Net()                                      # an nn.Module on the CPU, or on one GPU
images = torch.randn(8, 3, 32, 32)                 # one microbatch, in the shape that training will use
cutting = cut(model, images, stages=2)             # raises UserError if the model cannot be cut
for segment in cutting.segments:
    print(segment.name, segment.entry, len(segment.parameters))
first = cutting.stage(0, 3)                        # segments 0, 1 and 2
second = cutting.stage(3, len(cutting.segments))   # the others
assert torch.equal(second(first(images)), model(images))
optimizer = torch.optim.Adam(second.parameters())  # the model's own parameters, under the model's names
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Sequence

import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.parallel.model import recompute
from algorun_train.parallel.model.segments import SegmentSpec
from algorun_train.parallel.model.trees import arguments, mapped

from . import boundary, value_dependence, verify_cut
from .build import Builder, Trials
from .found_cut import FoundCut, trimmed
from .partial_forward import ForwardPlace
from .recorder import Call, Recording, record

# Other numbers than the example's: a shape that depends on the data should change with one of them.
OTHERS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (torch.randn_like, torch.zeros_like, torch.neg)


def cut(model: nn.Module, example: object, *, stages: int, finest: bool = False, fewer: str = "fewer stages") -> Cut:
    """Finds every place at which `model` can be cut, and verifies each one by running the model cut and uncut.

    `example` is one microbatch: a tensor, a tuple of the model's arguments, or a dictionary of its keyword arguments.
    Units are the modules that are called once. A unit with more than 1 / (2 x stages) of the model's parameters is replaced
    by the modules that it calls. With `finest`, or if there would be fewer segments than stages, all units are.
    Call it under the autocast that training will use: boundaries get the types that were seen. The model is run, but
    its weights, buffers and random numbers stay as they are.

    Raises UserError if the model has fewer than `stages` segments. The message names the units at which it cannot be cut,
    with reasons, and advises `fewer`.
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
    """A model cut into segments (a `segments.Cutting`).

    `found` says where they begin: this rank's search or another rank's has found it. `refused` says why the model cannot be
    cut at other units. Modules that the forward has marked during the search are marked in `model` (`recompute.mark`).
    """

    def __init__(self, model: nn.Module, example: object, found: FoundCut) -> None:
        for name, preserve_rng_state in found.recording.recomputed.items():
            recompute.mark(model.get_submodule(name), preserve_rng_state)
        self._builder = Builder(model, *arguments(example), found.recording)
        self.found, self.refused, self.output = found, found.refused, found.output
        self.example = tuple(self._builder.entry)
        members: list[list[str]] = [[] for _ in range(len(found.places) + 1)]
        for name in found.units:
            members[boundary.segment_of(found.recording.once()[name].begin, found.places)].append(name)
        owned: list[list[str]] = [[] for _ in members]
        for span in self._builder.parameters:
            for number in boundary.segments_of(span, found.places):
                owned[number].append(span.names[0])
        self.segments = tuple(
            SegmentSpec(units[0], tuple(units), tuple(parameters), crossing.specs)
            for units, parameters, crossing in zip(members, owned, found.crossings, strict=True)
        )

    def over(self, model: nn.Module) -> Cut:
        """The same cut of another copy of the model: stages get the parameters and buffers of that copy."""
        other = copy.copy(self)
        other._builder = self._builder.over(model)
        return other

    def stage(self, begin: int, end: int, change: Callable[[nn.Module], None] | None = None) -> nn.Module:
        """Segments begin .. end - 1 as a module; see `segments.Cutting.stage`."""
        if not 0 <= begin < end <= len(self.segments):
            raise ValueError(f"stage({begin}, {end}) of {len(self.segments)} segments")
        untouched = self.found.crossings[begin].untouched
        return self._builder.stage(self._builder.model, self.found.places, begin, end, untouched, change)


class Search:
    """Looks for the places at which a model can be cut. `refused` says why not, for each unit without such a place."""

    def __init__(self, model: nn.Module, example: object) -> None:
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
        """Names of the parameters and buffers that the forward pass uses."""
        return {name for name, ticks in self._first.uses.items() if ticks}

    def places(self, units: list[Call], only: Collection[str] | None = None) -> list[ForwardPlace]:
        """The places between successive `units` at which the model can be left and entered, all verified.

        `only`: no other places than before the units of these names.
        """
        self._units, self.refused = units, {}
        wanted = [unit for unit in units[1:] if only is None or unit.name in only]
        kept = self._verified(self._candidates(wanted))
        if any(place.inputs for place in kept.values()):  # perhaps only because of places that were refused since
            fewer = self._candidates([unit for unit in wanted if unit.name in kept])
            if any(fewer[name].inputs != kept[name].inputs for name in kept) and not self._fault(fewer):
                kept = fewer
        self.refused = {unit.name: self.refused[unit.name] for unit in units if unit.name in self.refused}
        return list(kept.values())

    def cutting(self, places: Sequence[ForwardPlace]) -> Cut:
        """The model cut at these places."""
        found = FoundCut(
            recording=trimmed(self._first, places),
            places=tuple(places),
            units=tuple(unit.name for unit in self._units),
            crossings=tuple(self._trials.crossings(places)),
            output=self._trials.output,
            refused=self.refused,
        )
        return Cut(self._model, self._example, found)

    def _candidates(self, units: list[Call]) -> dict[str, ForwardPlace]:
        """Places to verify, by unit. An input of the model that a later place needs crosses at all places before it as well."""
        found: dict[str, ForwardPlace] = {}
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

    def _verified(self, candidates: dict[str, ForwardPlace]) -> dict[str, ForwardPlace]:
        """The candidates at which the model can be cut, all at the same time; `refused` gets the reasons of the others."""
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
        kept: dict[str, ForwardPlace] = {}
        for name, place in alone.items():
            if reason := self._fault(kept | {name: place}):
                self.refused[name] = reason
            else:
                kept[name] = place
        return kept

    def _fault(self, places: dict[str, ForwardPlace]) -> str | None:
        return self._trials.fault(list(places.values()))


def _recorded(
    model: nn.Module,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    change: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Recording:
    with verify_cut.fixed(model, True):
        if change:
            args, kwargs = mapped((args, kwargs), lambda tensor: _other(tensor, change))
        return record(model, args, kwargs)


def _other(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Another valid example: changed numbers in a float tensor, the same numbers in reverse order in any other tensor."""
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
        if tensor.is_meta or nn.parameter.is_lazy(tensor):
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
