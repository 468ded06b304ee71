"""Runs the checks one after the other, each within its own time and all within 20 minutes."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .session import Check, Figure, Seen, Session, Skip, Wrong

BUDGET_S = 1170.0  # of the 20 minutes; the rest is for the start and the page
LEAST_S = 5.0  # a check that would get less is not begun


@dataclass(frozen=True, slots=True)
class Row:
    """A check's result. `state` is passed, skipped or failed; `note` what was seen, the reason, or what is wrong."""

    name: str
    title: str
    state: str
    seconds: float
    note: str
    figures: tuple[Figure, ...] = ()


def run(
    session: Session, checks: Iterable[Check], told: Callable[[Row], None], budget_s: float = BUDGET_S
) -> list[Row]:
    """All results, in order; `told` hears each when it is there."""
    end = time.monotonic() + budget_s
    rows = []
    for check in checks:
        rows.append(_one(session, check, end))
        told(rows[-1])
    return rows


def _one(session: Session, check: Check, end: float) -> Row:
    begun = time.monotonic()
    session.check, session.deadline = check.name, min(begun + check.limit_s, end)
    state, seen = "passed", Seen("")
    try:
        _possible(session, check)
        if session.deadline - begun < LEAST_S:
            raise Skip("no time is left of the 20 minutes; run it alone: --only " + check.name)
        seen = check.run(session)
    except Skip as reason:
        state, seen = "skipped", Seen(str(reason))
    except Wrong as what:
        state, seen = "failed", Seen(str(what))
    except Exception as defect:  # of the check itself: the others are still made, and the page says it
        state, seen = "failed", Seen(f"the check itself broke: {type(defect).__name__}: {defect}")
    # Models of a billion weights and their checkpoints: the next check may need the disk. A failure keeps its logs.
    if state != "failed":
        shutil.rmtree(session.folder / check.name, ignore_errors=True)
    return Row(check.name, check.title, state, time.monotonic() - begun, seen.note, seen.figures)


def _possible(session: Session, check: Check) -> None:
    """Raises Skip where this machine lacks what the check needs."""
    have = session.machine.count
    if have < check.gpus:
        many = "a GPU" if check.gpus == 1 else f"{check.gpus} GPUs"
        raise Skip(f"needs {many}; this machine has {have if session.machine.on_gpu else 'none'}")
    if absent := [name for name in check.modules if importlib.util.find_spec(name) is None]:
        raise Skip(f"needs {', '.join(absent)}, which this Python does not have")
