"""Manual partition: smp.partition and smp.set_partition say which stage a module belongs to."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from torch import nn

from algorun_smdistributed.modelparallel.core.placement import MARK
from algorun_smdistributed.script_types import Given
from algorun_train.common.errors import UserError

from .session import context

_current: list[int] = []


def _checked(index: Given) -> int:
    count = context().layout.grid.pp
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
