"""Builds the stages of a recorded model, and verifies them against the uncut model."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence

import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.parallel.model.segments import TensorSpec
from algorun_train.parallel.model.trees import Arguments, leaves, mapped

from . import boundary, verify_cut
from .boundary import ParameterUse
from .meta import needs_values
from .module_copy import copy_modules, disown, names, on_meta
from .partial_forward import ForwardPlace, PartialForward, StagePlan
from .recorder import Call, Recording
from .verify_cut import Crossing, Result


class Builder:
    """Builds stages of a recorded model. `args` and `kwargs` are the arguments of its example."""

    def __init__(
        self,
        model: nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        recording: Recording,
    ) -> None:
        self.model, self.recording, self.spans = model, recording, spans_of(model, recording)
        self.example, self.entry = (args, kwargs), leaves((args, kwargs))
        self._meta = mapped(self.example, lambda tensor: tensor.detach().to("meta"))
        named = dict(model.named_parameters())
        self.parameters = [span for span in self.spans if span.names[0] in named]

    def stage(
        self,
        model: nn.Module,
        places: Sequence[ForwardPlace],
        begin: int,
        end: int,
        untouched: frozenset[int] = frozenset(),
        change: Callable[[nn.Module], None] | None = None,
    ) -> PartialForward:
        """Segments begin .. end - 1 of `model`, which is the recorded model or a copy of it.

        `untouched`: entry tensors that no gradient reaches. `change`: see `segments.Cutting.stage`.
        """
        enter = places[begin - 1] if begin else None
        leave = places[end - 1] if end <= len(places) else None
        start, stop = enter.tick if enter else 0, leave.tick if leave else float("inf")
        known = names(model)
        skipped = boundary.before(self.recording, start, enter.inputs if enter else ())
        own, read = set(), set()
        for span in self.spans:
            if any(begin <= number < end for number in boundary.segments_of(span, places)):
                own.add(span.names[0])
            elif self._read(span, skipped, stop):
                read.add(span.names[0])  # a buffer that is only read: every stage that reads it has it

        def mine(tensor: torch.Tensor) -> bool:
            return known[id(tensor)][0] in own or known[id(tensor)][0] in read

        foreign: set[int] = set()

        def exchange(tensor: torch.Tensor) -> torch.Tensor:
            if mine(tensor):
                return tensor
            empty = on_meta(tensor)
            foreign.add(id(empty))
            return empty

        copied = copy_modules(model, exchange)
        disown(copied, lambda tensor: id(tensor) in foreign)
        for module in copied.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and id(buffer) in known and known[id(buffer)][0] in read:
                    module._non_persistent_buffers_set.add(name)
        if change:
            change(copied)  # first: the stage wraps the modules that it skips, enters or leaves around this change
        plan = StagePlan(
            begin=enter,
            end=leave,
            skipped=tuple(skipped),
            inside=tuple(call.name for call in boundary.between(self.recording, start, stop)),
            later=tuple(call.name for call in boundary.between(self.recording, stop, float("inf"))),
            example=self.example if enter is None else self._meta,
            untouched=untouched,
        )
        return PartialForward(copied, plan)

    def _read(self, span: ParameterUse, skipped: Sequence[Call], stop: float) -> bool:
        ticks = self.recording.uses[span.names[0]]
        return span.steady and any(
            tick < stop and not any(call.begin <= tick <= call.end for call in skipped) for tick in ticks
        )

    def over(self, model: nn.Module) -> Builder:
        """A builder of stages of another copy of the model."""
        other = copy.copy(self)
        other.model = model
        return other


class Trials:
    """Compares the stages of a recorded model with the uncut model, whose results it computes once."""

    def __init__(self, builder: Builder, others: Sequence[Arguments] = ()) -> None:
        """`others` are further examples, as (args, kwargs), with which the cut must work too."""
        self._builder = builder
        self._uncut = [self._run_uncut(builder.example)]
        for other in others:
            with contextlib.suppress(Exception):  # the model does not take it
                self._uncut.append(self._run_uncut(other))
        self.output = tuple(TensorSpec.of(tensor) for tensor in self._uncut[0][1][True].outputs)
        self._seen: dict[tuple[ForwardPlace, ...], list[Crossing]] = {}

    def _run_uncut(self, example: Arguments) -> tuple[list[torch.Tensor], dict[bool, Result]]:
        """The tensors of the example, and the results in training (True) and in evaluation."""
        return leaves(example), {
            mode: verify_cut.run_uncut(self._builder.model, *example, mode) for mode in (True, False)
        }

    def fault(self, places: Sequence[ForwardPlace]) -> str | None:
        """What differs when the model is cut at all of `places`; None if nothing does."""
        seen = []
        for number, (entry, expected) in enumerate(self._uncut):
            where = ", with other values of what the forward looks at" if number else ""
            for training in (True, False):
                try:
                    result, crossings = verify_cut.run_cut(self._builder.model, self._makers(places), entry, training)
                except Exception as error:
                    return f"in {'training' if training else 'evaluation'}{where}, {_why(error)}"
                if difference := verify_cut.differences(expected[training], result, training):
                    return difference + where
                if training:
                    seen.append(crossings)
        self._seen[tuple(places)] = [verify_cut.joined(each) for each in zip(*seen, strict=True)]
        return None

    def crossings(self, places: Sequence[ForwardPlace]) -> list[Crossing]:
        """What enters each segment between `places`, which have been verified."""
        return self._seen[tuple(places)]

    def _makers(self, places: Sequence[ForwardPlace]) -> list[Callable[[nn.Module], nn.Module]]:
        def maker(begin: int) -> Callable[[nn.Module], nn.Module]:
            return lambda model: self._builder.stage(model, places, begin, begin + 1)

        return [maker(begin) for begin in range(len(places) + 1)]


def _why(error: Exception) -> str:
    text = " ".join(str(error).split())
    if not isinstance(error, UserError) and needs_values(error):
        return f"the forward looks at values that only an earlier stage has ({text})"
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text[:200]}"


def spans_of(model: nn.Module, recording: Recording) -> list[ParameterUse]:
    """When each parameter is used, and each buffer that the forward changes; for other buffers, their first use.

    A parameter that no recorded function uses counts as used when the module that has it is called.
    """
    once, known = recording.once(), names(model)
    found = []
    for tensor in [*model.parameters(), *model.buffers()]:
        every = known[id(tensor)]
        ticks = recording.uses[every[0]] or sorted({_call_of_owner(name, once) for name in every})
        copied = isinstance(tensor, nn.Parameter)
        fixed = not copied and not any(name in recording.changed for name in every)
        size = tensor.numel() * tensor.element_size()
        found.append(ParameterUse(tuple(every), size, tuple(ticks[:1] if fixed else ticks), fixed, copied))
    return found


def _call_of_owner(name: str, once: dict[str, Call]) -> int:
    """The tick at which the module with this parameter or buffer is called, or one around it that is called once."""
    owner = name.rpartition(".")[0]
    while owner and owner not in once:
        owner = owner.rpartition(".")[0]
    return once[owner].begin if owner else 0
