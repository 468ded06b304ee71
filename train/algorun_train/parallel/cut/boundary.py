"""Where a recorded model may be left and entered: units, the tensors that cross, and why a place is refused. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from .partial_forward import ForwardPlace
from .recorder import Call, Recording, Value


@dataclass(frozen=True, slots=True)
class ParameterUse:
    """When a parameter or buffer is used."""

    names: tuple[str, ...]  # all its global names
    bytes: int
    ticks: tuple[int, ...]  # of its uses, in order; if it is steady, only the first
    steady: bool  # a buffer that the forward only reads: every stage may have its own
    copied: bool  # a parameter: each stage that uses it has it, and the gradients are summed

    @property
    def first(self) -> int:
        return self.ticks[0]

    @property
    def last(self) -> int:
        return self.ticks[-1]


def units(recording: Recording, spans: Sequence[ParameterUse], limit: float) -> list[Call]:
    """Modules called once, in execution order, none within another.

    A module with more than `limit` bytes of parameters is replaced by the modules that it calls. 0 gives the smallest.
    """
    once = recording.once()
    found: list[Call] = []

    def visit(call: Call) -> None:
        inner = [child for child in call.children if once.get(child.name) is child]
        size = sum(span.bytes for span in spans if any(call.begin <= tick <= call.end for tick in span.ticks))
        if inner and (limit == 0 or size > limit or call.parent is None):
            for child in inner:
                visit(child)
        elif call.parent is not None:
            found.append(call)

    visit(recording.calls[0])
    return found


def needed(recordings: Sequence[Recording], unit: Call) -> frozenset[int]:
    """The numbers of the model's inputs that a stage needs if it begins with `unit`, a call of the first recording."""
    name = _outermost(recordings[0], unit).name
    entered = [(recording, recording.once().get(name)) for recording in recordings]
    return frozenset().union(*(recording.needed(call.begin) for recording, call in entered if call is not None))


def place(recording: Recording, unit: Call, inputs: frozenset[int] = frozenset()) -> ForwardPlace | str:
    """The place at which the model can be entered so that `unit` runs first; a text with the reason if there is none.

    `inputs` of the model, by number, cross there too. Every other tensor that crosses must be an argument of the unit, of a
    module that begins with it, or of the model. Within a residual branch it is not: two tensors would have to cross.
    """
    entered = _outermost(recording, unit)
    crossing = recording.live(entered.begin, inputs)
    found: list[tuple[str, int]] = []
    around = [*_starting(recording, entered), recording.calls[0]]
    for value in crossing:
        spot = next((spot for call in around if (spot := _within(call, value))), None)
        if spot is None:
            shape = "x".join(str(n) for n in value.spec.shape)
            return f"a tensor ({shape}) made before it is needed after it and is not among its arguments"
        found.append(spot)
    if not crossing:
        return "nothing that was computed before it is needed from there on"
    dtypes = tuple(value.spec.dtype for value in crossing)
    written = tuple(value.written >= entered.begin for value in crossing)
    return ForwardPlace(entered.name, entered.begin, tuple(found), dtypes, written, tuple(sorted(inputs)))


def unstable(one: Recording, other: Recording, place: ForwardPlace) -> bool:
    """Whether the shapes that cross differ between two recordings with different data."""
    same = other.once().get(place.name)
    if same is None:
        return True
    mine, its = one.live(place.tick, place.inputs), other.live(same.begin, place.inputs)
    return [value.spec for value in mine] != [value.spec for value in its]


def crossed(place: ForwardPlace, spans: Sequence[ParameterUse]) -> list[ParameterUse]:
    """Buffers that the forward writes to and uses both before and after a place."""
    return [span for span in spans if not span.copied and span.first < place.tick <= span.last]


def segment_of(tick: int, places: Sequence[ForwardPlace]) -> int:
    """Number of the segment, between successive places, that a tick lies in."""
    return bisect.bisect_right([place.tick for place in places], tick)


def segments_of(span: ParameterUse, places: Sequence[ForwardPlace]) -> list[int]:
    """Numbers of the segments that use a parameter or buffer, in order."""
    return sorted({segment_of(tick, places) for tick in span.ticks})


def before(recording: Recording, begin: float, inputs: Collection[int] = ()) -> list[Call]:
    """The largest modules called once that end before `begin`, without those that a stage with `inputs` calls again."""
    return _largest(
        recording, lambda call: call.end < begin and recording.skippable(call, inputs), lambda call: call.begin < begin
    )


def between(recording: Recording, begin: float, end: float) -> list[Call]:
    """The largest modules called once whose calls lie in [begin, end)."""
    return _largest(
        recording,
        lambda call: begin <= call.begin and call.end < end,
        lambda call: call.begin < end and call.end >= begin,
    )


def _largest(recording: Recording, wanted: Callable[[Call], bool], looked_into: Callable[[Call], bool]) -> list[Call]:
    """The outermost wanted modules that are called once; `looked_into` says where to look for smaller ones."""
    once = recording.once()
    found: list[Call] = []

    def visit(call: Call) -> None:
        for child in call.children:
            if once.get(child.name) is child and wanted(child):
                found.append(child)
            elif looked_into(child):
                visit(child)

    visit(recording.calls[0])
    return found


def _outermost(recording: Recording, unit: Call) -> Call:
    """The largest module called once that begins with `unit`. A stage that is entered there runs less of the user's code."""
    once = recording.once()
    call = unit
    while (
        call.parent is not None
        and once.get(call.parent.name) is call.parent
        and call.parent.children[0] is call
        and not _made_between(recording, call.parent.begin, call.begin)
    ):
        call = call.parent
    return call


def _made_between(recording: Recording, begin: int, end: int) -> bool:
    return bisect.bisect_left(recording.made, begin) != bisect.bisect_left(recording.made, end)


def _starting(recording: Recording, call: Call) -> list[Call]:
    """`call` and the modules around it that call nothing else before it."""
    found = [call]
    while call.parent is not None and call.parent.children[0] is call:
        call = call.parent
        found.append(call)
    return found


def _within(call: Call, value: Value) -> tuple[str, int] | None:
    return next(((call.name, i) for i, argument in enumerate(call.arguments) if argument is value), None)
