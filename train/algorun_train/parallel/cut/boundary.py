"""Where a recorded model may be left and entered: units, the tensors that cross, and why a place is refused. Pure."""

import bisect
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .recorder import Call, Recording
from .stage import Place


@dataclass(frozen=True, slots=True)
class Span:
    """When a parameter or buffer is used."""

    names: tuple[str, ...]  # all its global names
    bytes: int
    ticks: tuple[int, ...]  # of its uses, in order; of a steady one only the first
    steady: bool  # a buffer that the forward only reads: every stage can have it
    copied: bool  # a parameter: each stage that uses it holds a copy, and their gradients are summed

    @property
    def first(self) -> int:
        return self.ticks[0]

    @property
    def last(self) -> int:
        return self.ticks[-1]


def units(recording: Recording, spans: Sequence[Span], limit: float) -> list[Call]:
    """Modules called once, in execution order, none within another.

    One whose parameters take more than `limit` bytes is replaced by the modules that it calls; so 0 gives the finest.
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
    """The model's inputs, by number, that have to be there where the first of the recordings is entered with `unit`."""
    name = _outermost(recordings[0], unit).name
    entered = [(recording, recording.once().get(name)) for recording in recordings]
    return frozenset().union(*(recording.needed(call.begin) for recording, call in entered if call is not None))


def place(recording: Recording, unit: Call, inputs: frozenset[int] = frozenset()) -> Place | str:
    """The place at which the model can be entered so that `unit` is the first to run, or why there is none.

    `inputs` of the model, by number, cross there too. What else crosses has to be among the arguments of the unit, of a
    module that begins with it, or of the model: within a residual branch that is not so, and such a place would make
    two tensors cross where one does elsewhere.
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
    return Place(entered.name, entered.begin, tuple(found), dtypes, written, tuple(sorted(inputs)))


def unstable(one: Recording, other: Recording, place: Place) -> bool:
    """Whether the shapes that cross differ between two recordings with different data."""
    twin = other.once().get(place.name)
    if twin is None:
        return True
    mine, its = one.live(place.tick, place.inputs), other.live(twin.begin, place.inputs)
    return [value.spec for value in mine] != [value.spec for value in its]


def crossed(place: Place, spans: Sequence[Span]) -> list[Span]:
    """Buffers that the forward writes to, and that are used both before and after a place."""
    return [span for span in spans if not span.copied and span.first < place.tick <= span.last]


def segment_of(tick: int, places: Sequence[Place]) -> int:
    """Number of the segment, between successive places, that a tick lies in."""
    return bisect.bisect_right([place.tick for place in places], tick)


def segments_of(span: Span, places: Sequence[Place]) -> list[int]:
    """Numbers of the segments that use a parameter or buffer, in order."""
    return sorted({segment_of(tick, places) for tick in span.ticks})


def before(recording: Recording, begin: int, inputs: Collection[int] = ()) -> list[Call]:
    """The largest modules called once that end before `begin`, but for those that a stage with `inputs` calls anew."""
    return _largest(
        recording, lambda call: call.end < begin and recording.skippable(call, inputs), lambda call: call.begin < begin
    )


def between(recording: Recording, begin: int, end: float) -> list[Call]:
    """The largest modules called once whose calls lie in [begin, end)."""
    return _largest(
        recording,
        lambda call: begin <= call.begin and call.end < end,
        lambda call: call.begin < end and call.end >= begin,
    )


def _largest(recording, wanted, looked_into):  # type: ignore[no-untyped-def]
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
    """The largest module called once that begins with `unit`: entered there, less of the user's code runs for nothing."""
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
    """`call` and the modules around it in which nothing else was called before."""
    found = [call]
    while call.parent is not None and call.parent.children[0] is call:
        call = call.parent
        found.append(call)
    return found


def _within(call: Call, value) -> tuple[str, int] | None:  # type: ignore[no-untyped-def]
    return next(((call.name, i) for i, argument in enumerate(call.arguments) if argument is value), None)
