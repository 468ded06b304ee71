"""Manual partition: smp.partition and smp.set_partition say which stage a module belongs to."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from torch import nn

from .session import session
from .shared import UserError

MARK = "_smp_partition"
_current: list[int] = []


def _checked(index: Any) -> int:
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
    def marked(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        original(module, *args, **kwargs)
        if _current:
            module.__dict__[MARK] = _current[-1]

    nn.Module.__init__ = marked  # type: ignore[method-assign]
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
    words = unit.split(".") if unit else []
    for length in range(len(words), -1, -1):
        module = model.get_submodule(".".join(words[:length]))
        if MARK in module.__dict__:
            return int(module.__dict__[MARK])
    return default


def begins(cutting: Any, model: nn.Module, default: int | None, stages: int) -> tuple[int, ...]:
    """The first segment of each stage. UserError where the wished partitions are no such cut."""
    found: list[int] = []
    names: list[str] = []
    for number, segment in enumerate(cutting.segments):
        wanted = {_wanted(model, unit, default or 0) for unit in segment.units}
        if len(wanted) > 1:
            units = ", ".join(f"{unit} ({_wanted(model, unit, default or 0)})" for unit in segment.units[:6])
            raise UserError(
                f"smp.partition: the model cannot be cut between {units}; allowed: one partition for all of them; "
                "fix: put them into one partition"
            )
        (stage,) = wanted
        names.append(segment.units[0])
        if stage == len(found) - 1:
            continue
        if stage != len(found):
            before = f" after {names[-2]}, which is in partition {len(found) - 1}" if found else " first"
            raise UserError(
                f"smp.partition: {segment.units[0]} of partition {stage} is called{before}; allowed: partitions 0, 1, "
                "2 .. in the order of the calls, each without a gap; fix: number them so, or auto_partition"
            )
        found.append(number)
    if len(found) != stages:
        raise UserError(
            f'smp.partition: modules in {len(found)} partitions; allowed: {stages}, as "partitions" says; '
            "fix: put modules into every one of them"
        )
    return tuple(found)
