"""Manual partition: smp.partition and smp.set_partition say which stage a module belongs to."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from torch import nn

from algorun_train.errors import UserError
from algorun_train.parallel.partition import manual_order
from algorun_train.parallel.segments import Cutting
from smdistributed.script_types import Given

from .session import session

MARK = "_smp_partition"
SHOWN = 4  # modules that a warning names
_current: list[int] = []


def _checked(index: Given) -> int:
    count = session().layout.grid.pp
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
        raise UserError(f"smp.partition({index!r}); allowed: 0 .. {count - 1}; fix: name a partition that exists")
    return index


@contextlib.contextmanager
def partition(index: int) -> Iterator[None]:
    """Modules created inside belong to partition `index`; the innermost context counts.

    Without effect where auto_partition is on.
    """
    _current.append(_checked(index))
    original = nn.Module.__init__

    @functools.wraps(original)
    def marked(module: nn.Module, *args: Given, **kwargs: Given) -> None:
        original(module, *args, **kwargs)
        if _current:
            module.__dict__[MARK] = _current[-1]

    nn.Module.__init__ = marked  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.__init__ = original  # type: ignore[method-assign]
        _current.pop()


def set_partition(module: nn.Module, index: int) -> None:
    """Puts a module, with all that it holds, into partition `index`."""
    number = _checked(index)
    for each in module.modules():
        each.__dict__[MARK] = number


def _wanted(model: nn.Module, unit: str, default: int) -> int:
    """The partition of a unit: its own mark, or that of the module around it, or the default."""
    for name in (*reversed(around(unit)), ""):
        module = model.get_submodule(name)
        if MARK in module.__dict__:
            return int(module.__dict__[MARK])
    return default


def placed(cutting: Cutting, model: nn.Module, default: int | None, stages: int) -> tuple[tuple[int, ...], str | None]:
    """The first segment of each stage, and a sentence about what lies elsewhere than the script says, if anything does.

    UserError where a partition has no module.
    """
    wished = {unit: _wanted(model, unit, default or 0) for segment in cutting.segments for unit in segment.units}
    if missing := sorted(set(range(stages)) - set(wished.values())):
        raise UserError(
            f"smp.partition: no module in partition {', '.join(map(str, missing))}; allowed: modules that are called once "
            f'in each of 0 .. {stages - 1}, as "partitions" says; fix: put modules into every one of them, or ask for '
            "fewer partitions"
        )
    sizes = {unit: sum(p.nbytes for p in model.get_submodule(unit).parameters()) for unit in wished}
    units = [[(wished[unit], sizes[unit]) for unit in segment.units] for segment in cutting.segments]
    found = manual_order.nearest(units, stages)
    spans = itertools.pairwise([*found.begins, len(cutting.segments)])
    moves = {
        unit: (wished[unit], partition)
        for (begin, end), partition in zip(spans, found.order, strict=True)
        for segment in cutting.segments[begin:end]
        for unit in segment.units
    }
    return found.begins, _differs(found.order, moves, sizes)


@functools.cache  # once, though a model is cut again where an evaluation came before any training
def say(text: str) -> None:
    """Prints on rank 0 what has not been said yet."""
    session().comm.say(text)


def _differs(order: Sequence[int], moves: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]) -> str | None:
    """What of the wished placement is otherwise; None where all is in order. `moves` has every unit."""
    said = []
    if list(order) != sorted(order):
        said.append(f"pp_rank 0 .. {len(order) - 1} have partitions {', '.join(map(str, order))}")
    if moved := _outermost(moves, sizes):
        shown = [f"{name} (from partition {wished} to {partition})" for name, wished, partition in moved[:SHOWN]]
        more = f" and {len(moved) - SHOWN} more" if len(moved) > SHOWN else ""
        said.append(f"moved: {', '.join(shown)}{more}")
    if not said:
        return None
    return (
        "warning: smp.partition: stages run one after the other, in the order of the model's calls, which this placement "
        f"does not follow; {'; '.join(said)}; results are the same, memory and time may differ"
    )


def _outermost(moves: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """What has moved, from where and to where, the largest first: the outermost modules whose units all went one way."""
    ways: dict[str, set[tuple[int, int]]] = {}
    for unit, move in moves.items():
        for name in around(unit):
            ways.setdefault(name, set()).add(move)
    found: Counter[tuple[str, int, int]] = Counter()
    for unit, (wished, partition) in moves.items():
        if wished != partition:
            name = next(name for name in around(unit) if len(ways[name]) == 1)
            found[name, wished, partition] += sizes[unit]
    return [move for move, _ in found.most_common()]


def around(unit: str) -> list[str]:
    """The names of the modules around a unit, the outermost first, and its own."""
    words = unit.split(".")
    return [".".join(words[: length + 1]) for length in range(len(words))]
