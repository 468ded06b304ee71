"""Cuts any module into segments without a tracer: the user's own forward runs in every stage.

from train.parallel.cut import cut

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

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ..errors import UserError
from . import cut_places, cut_trial
from .cut_copy import disown, names, on_meta, twin
from .cut_places import Span
from .cut_record import Recording, record
from .cut_stage import Place, Stage, StagePlan
from .cutting import SegmentSpec, TensorSpec
from .trees import arguments, leaves, mapped


def cut(model: nn.Module, example: Any, *, stages: int, finest: bool = False) -> "Cut":
    """Finds every place at which `model` can be split, and proves each one by running the model both ways.

    `example` is one microbatch: a tensor, a tuple of the model's arguments, or a dictionary of its keyword arguments.
    Units are the modules that are called once; one with more parameters than a 1 / (2 x stages) share of the model is
    replaced by the modules that it calls (`finest`: all are), and so are all where the places would be too few.
    Call it under the autocast that training will use: a boundary's dtype is the one that was seen.

    Raises UserError where fewer than `stages` segments are possible. It names the units at which the model can't be
    cut with the reason, and the parameters that are shared across. The model is run, but stays as it was.
    """
    _refuse_unfit(model)
    args, kwargs = arguments(example)
    first = _recorded(model, args, kwargs)
    try:
        second = _recorded(model, *mapped((args, kwargs), _other))
    except Exception:  # the changed example may be one that the model does not take
        second = None
    spans = _spans(model, first)
    trial = _Trial(model, args, kwargs, first, spans)
    limit = 0.0 if finest else sum(span.bytes for span in spans) / (2 * stages)
    found = _find(first, second, spans, limit, trial)
    if len(found.places) + 1 < stages and limit:
        found = _find(first, second, spans, 0.0, trial)
    if len(found.places) + 1 < stages:
        raise UserError(_too_few(model, stages, found))
    return found.cutting


class Cut:
    """The segments of a model; see `cutting.Cutting`. `refused` says why the model can't be cut at other units."""

    def __init__(self, trial: "_Trial", places: Sequence[Place], units: Sequence[Any], refused: dict[str, str]) -> None:
        self._trial, self._places, self.refused = trial, tuple(places), refused
        self._crossings, self._output = trial.crossings(self._places)
        members: list[list[str]] = [[] for _ in range(len(self._places) + 1)]
        for unit in units:
            members[cut_places.segment_of(unit.begin, self._places)].append(unit.name)
        owned = [[s.names[0] for s in trial.parameters if self._segment(s) == i] for i in range(len(members))]
        self.segments = tuple(
            SegmentSpec(units[0], tuple(units), tuple(parameters), crossing.specs)
            for units, parameters, crossing in zip(members, owned, self._crossings, strict=True)
        )
        self.output = self._output

    def stage(self, begin: int, end: int) -> nn.Module:
        """Segments begin .. end - 1 as a module; see `cutting.Cutting.stage`."""
        if not 0 <= begin < end <= len(self.segments):
            raise ValueError(f"stage({begin}, {end}) of {len(self.segments)} segments")
        return self._trial.stage(self._trial.model, self._places, begin, end, self._crossings[begin].untouched)

    def _segment(self, span: Span) -> int:
        return cut_places.segment_of(span.first, self._places)


class _Trial:
    """Makes stages of a recorded model and compares them with the whole, whose results it computes once."""

    def __init__(self, model: nn.Module, args: Any, kwargs: Any, recording: Recording, spans: list[Span]) -> None:
        self.model, self.recording, self.spans = model, recording, spans
        self.example, self.entry = (args, kwargs), leaves((args, kwargs))
        self._meta = mapped(self.example, lambda tensor: tensor.detach().to("meta"))
        named = dict(model.named_parameters())
        self.parameters = [span for span in spans if span.names[0] in named]
        self._whole = {training: cut_trial.whole(model, args, kwargs, training) for training in (True, False)}

    def stage(
        self,
        model: nn.Module,
        places: Sequence[Place],
        begin: int,
        end: int,
        untouched: frozenset[int] = frozenset(),
    ) -> Stage:
        """Segments begin .. end - 1 of `model`, which is the recorded one or a copy of it."""
        enter = places[begin - 1] if begin else None
        leave = places[end - 1] if end <= len(places) else None
        start, stop = enter.tick if enter else 0, leave.tick if leave else float("inf")
        known = names(model)
        own, read = set(), set()
        for span in self.spans:
            if begin <= cut_places.segment_of(span.first, places) < end:
                own.add(span.names[0])
            elif any(start <= tick < stop for tick in self.recording.uses[span.names[0]]):
                read.add(span.names[0])  # a buffer that nobody writes to: every stage that reads it has it

        def mine(tensor: torch.Tensor) -> bool:
            return known[id(tensor)][0] in own or known[id(tensor)][0] in read

        foreign: set[int] = set()

        def exchange(tensor: torch.Tensor) -> torch.Tensor:
            if mine(tensor):
                return tensor
            empty = on_meta(tensor)
            foreign.add(id(empty))
            return empty

        copied = twin(model, exchange)
        disown(copied, lambda tensor: id(tensor) in foreign)
        for module in copied.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and id(buffer) in known and known[id(buffer)][0] in read:
                    module._non_persistent_buffers_set.add(name)
        plan = StagePlan(
            begin=enter,
            end=leave,
            skipped=tuple(cut_places.before(self.recording, start)),
            inside=tuple(call.name for call in cut_places.between(self.recording, start, stop)),
            example=self.example if enter is None else self._meta,
            untouched=untouched,
        )
        return Stage(copied, plan)

    def fault(self, places: Sequence[Place]) -> str | None:
        """What goes wrong when the model is split at all of `places`; None when nothing does."""
        for training in (True, False):
            try:
                result, _ = cut_trial.split(self.model, self._makers(places), self.entry, training)
            except Exception as error:
                mode = "training" if training else "evaluation"
                return f"in {mode}: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
            if difference := cut_trial.differences(self._whole[training], result):
                return difference
        return None

    def crossings(self, places: Sequence[Place]) -> tuple[list[cut_trial.Crossing], tuple[TensorSpec, ...]]:
        result, crossings = cut_trial.split(self.model, self._makers(places), self.entry, True)
        return crossings, tuple(TensorSpec.of(tensor) for tensor in result.outputs)

    def _makers(self, places: Sequence[Place]) -> list[Callable[[nn.Module], nn.Module]]:
        return [
            lambda model, begin=begin: self.stage(model, places, begin, begin + 1)  # type: ignore[misc]
            for begin in range(len(places) + 1)
        ]


class _Found:
    def __init__(self, trial: _Trial, places: list[Place], units: list[Any], refused: dict[str, str], tied: list[Span]):
        self.places, self.refused, self.tied = places, refused, tied
        self._make = lambda: Cut(trial, places, units, refused)

    @property
    def cutting(self) -> Cut:
        return self._make()


def _find(first: Recording, second: Recording | None, spans: list[Span], limit: float, trial: _Trial) -> _Found:
    units = cut_places.units(first, spans, limit)
    refused: dict[str, str] = {}
    candidates: dict[str, Place] = {}
    tied: list[Span] = []
    for unit in units[1:]:
        place = cut_places.place(first, unit)
        if isinstance(place, str):
            refused[unit.name] = place
        elif second is not None and cut_places.unstable(first, second, place):
            refused[unit.name] = "the shape of what crosses depends on the data"
        elif both := cut_places.crossed(place, spans):
            shared = ", ".join(" = ".join(span.names) for span in both[:3])
            refused[unit.name] = f"{shared} {'is' if len(both) == 1 else 'are'} used before and after it"
            tied += [span for span in both if span not in tied]
        else:
            candidates[unit.name] = place
    kept = _proven(trial, candidates, refused)
    return _Found(trial, kept, units, refused, tied)


def _proven(trial: _Trial, candidates: dict[str, Place], refused: dict[str, str]) -> list[Place]:
    """The candidates at which the model can be split, all at once; the others go to `refused` with what went wrong."""
    if trial.fault(list(candidates.values())) is None:
        return list(candidates.values())
    alone = {}
    for name, place in candidates.items():
        if fault := trial.fault([place]):
            refused[name] = fault
        else:
            alone[name] = place
    kept: list[Place] = list(alone.values())
    if trial.fault(kept) is None:
        return kept
    kept = []
    for name, place in alone.items():
        if fault := trial.fault([*kept, place]):
            refused[name] = fault
        else:
            kept.append(place)
    return kept


def _recorded(model: nn.Module, args: Any, kwargs: Any) -> Recording:
    with cut_trial.fixed(model, True):
        return record(model, args, kwargs)


def _other(tensor: torch.Tensor) -> torch.Tensor:
    """Another valid example: other numbers where they are floats, the same ones in another order where they are not."""
    if tensor.is_floating_point():
        return torch.randn_like(tensor)
    return tensor.flatten().flip(0).view(tensor.shape) if tensor.dim() else tensor


def _spans(model: nn.Module, recording: Recording) -> list[Span]:
    """When each parameter is used, and each buffer that the forward changes; for the others, their first use.

    What no function was seen to use belongs to the module that holds it, and that module's call.
    """
    once, known = recording.once(), names(model)
    found = []
    for tensor in [*model.parameters(), *model.buffers()]:
        every = known[id(tensor)]
        ticks = recording.uses[every[0]]
        if not ticks:
            holder = every[0].rpartition(".")[0]
            while holder and holder not in once:
                holder = holder.rpartition(".")[0]
            ticks = [once[holder].begin] if holder else [0]
        fixed = not isinstance(tensor, nn.Parameter) and not any(name in recording.changed for name in every)
        last = ticks[0] if fixed else ticks[-1]
        found.append(Span(tuple(every), tensor.numel() * tensor.element_size(), ticks[0], last))
    return found


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


def _too_few(model: nn.Module, stages: int, found: _Found) -> str:
    reasons = [f"{unit}: {reason}" for unit, reason in found.refused.items()]
    shown = "; ".join(reasons[:5]) + (f"; and {len(reasons) - 5} more" if len(reasons) > 5 else "")
    fix = "ask for fewer stages"
    if found.tied:
        fix = f"untie {', '.join(' and '.join(span.names) for span in found.tied[:3])}, or ask for fewer stages"
    return (
        f"option --stages: {stages} for model {type(model).__name__}, which can be cut into {len(found.places) + 1} at "
        f"most (it cannot be cut at {shown or 'any unit: it has one'}); allowed: 1 to {len(found.places) + 1}; fix: {fix}"
    )
