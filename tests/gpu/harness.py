"""Runs the checks one after the other, each within its own time and all within 20 minutes."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from .session import Check, Figure, Late, Seen, Session, Skip, Wrong

BUDGET_S = 1170.0  # of the 20 minutes; the rest is for the start and the page
LEAST_S = 5.0  # a check that would get less is not begun
NO_TIME = "no time is left of the 20 minutes; run it alone: --only "
LOGS = "gpu-test-logs"  # beside the session's folder, which is removed at the end


@dataclass(frozen=True, slots=True)
class Row:
    """A check's result. `state` is passed, skipped or failed; `note` what was seen, the reason, or what is wrong.

    `when`: the date, and the commit that was checked.
    """

    name: str
    title: str
    state: str
    seconds: float
    note: str
    figures: tuple[Figure, ...] = ()
    when: str = ""


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
            raise Skip(NO_TIME + check.name)
        seen = check.run(session)
    except Skip as reason:
        state, seen = "skipped", Seen(str(reason))
    except Late as what:  # no fault of the GPU, where the check had less than its own time
        late = session.deadline == end
        state, seen = ("skipped", Seen(NO_TIME + check.name)) if late else ("failed", Seen(str(what)))
    except Wrong as what:
        state, seen = "failed", Seen(str(what))
    except Exception as defect:  # of the check itself: the others are still made, and the page says it
        state, seen = "failed", Seen(f"the check itself broke: {type(defect).__name__}: {defect}")
    if state == "failed" and (logs := _keep_logs(session, check)):
        seen = Seen(f"{seen.note} (the whole output: {', '.join(map(str, logs))})")
    # Models of a billion weights and their checkpoints: the next check may need the disk.
    shutil.rmtree(session.folder / check.name, ignore_errors=True)
    return Row(check.name, check.title, state, time.monotonic() - begun, seen.note, seen.figures)


def _keep_logs(session: Session, check: Check) -> list[Path]:
    """What the check's jobs have printed, where it outlives this run."""
    kept = []
    for log in sorted((session.folder / check.name).glob("*/log.txt")):
        to = session.folder.parent / LOGS / f"{check.name}-{log.parent.name}.txt"
        to.parent.mkdir(exist_ok=True)
        shutil.copyfile(log, to)
        kept.append(to)
    return kept


def _possible(session: Session, check: Check) -> None:
    """Raises Skip where this machine lacks what the check needs."""
    have = session.machine.count
    if have < check.gpus:
        many = "a GPU" if check.gpus == 1 else f"{check.gpus} GPUs"
        raise Skip(f"needs {many}; this machine has {have if session.machine.on_gpu else 'none'}")
    if absent := [name for name in check.modules if importlib.util.find_spec(name) is None]:
        raise Skip(f"needs {', '.join(absent)}, which this Python does not have")
