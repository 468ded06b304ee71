"""Asks the package of training what a rank holds, in a process of its own: torch belongs to neither client nor launcher."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass

from algorun.common.errors import ExitCode, UserError

from .placement import Memory, RankLayout

PROGRAM = "algorun_train.fit.fit"
START_S = 120
LAYOUT_S = 300  # one of 8 billion weights takes some seconds


@dataclass(frozen=True, slots=True)
class Model:
    """What is trained, on each rank or pipeline: `batch_size` sequences of `context` tokens; None: it is a model of images."""

    architecture: str
    weights: int
    context: int | None
    batch_size: int


def compute(
    words: Sequence[str], layouts: Sequence[RankLayout], environ: Mapping[str, str], tried: Container[RankLayout] = ()
) -> tuple[Model, dict[RankLayout, Memory]]:
    """`words`: the job and its options. What is returned has no layout that was only `tried` and that the model cannot have. Raises
    UserError for an option or a model that cannot be computed ahead."""
    limit_s = START_S + LAYOUT_S * len(layouts)
    try:
        ended = subprocess.run(
            [sys.executable, "-I", "-m", PROGRAM, *words],
            input="".join(json.dumps({**asdict(each), "tried": each in tried}) + "\n" for each in layouts),
            capture_output=True,
            text=True,
            errors="backslashreplace",
            env=dict(environ),
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            "plan --fit",
            f"not done after {limit_s} seconds; it was ended",
            fix="fewer instance types, or fewer --hosts",
        ) from None
    if ended.returncode:
        raise _error(ended.returncode, ended.stderr)
    about, *rows = map(json.loads, ended.stdout.splitlines())
    return Model(**about), {layout: Memory(**row) for layout, row in zip(layouts, rows, strict=True) if row}


def _error(code: int, text: str) -> Exception:
    """The program's own error, or what it has printed: that is a defect, or a machine without memory."""
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    if code == ExitCode.CONFIGURATION and last.startswith("error: "):
        where, _, what = last.removeprefix("error: ").partition(": ")
        return UserError(where, what)
    return RuntimeError(f"{PROGRAM} ended with {code}:\n{text}")
