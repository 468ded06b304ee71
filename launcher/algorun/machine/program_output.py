"""Asks a program one thing. For `algorun doctor` and tests: no start of a job waits for it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program printed, and how it ended: `code` is negative for a signal. `late`: it was ended after TIMEOUT_S."""

    lines: tuple[str, ...] = ()
    code: int = 0
    late: bool = False
    absent: bool = False

    @property
    def failure(self) -> str:
        """How it failed, "" where it did not."""
        if self.absent:
            return "its program cannot be started"
        if self.late:
            return f"no answer within {TIMEOUT_S:g} s"
        if self.code < 0:
            return f"its process was ended by signal {-self.code}"
        return f"its process left with {self.code}" if self.code else ""


def ask(*argv: str, environ: Mapping[str, str] | None = None) -> Answer:
    """Runs a program to its end, or TIMEOUT_S long."""
    if shutil.which(argv[0]) is None:
        return Answer(absent=True)
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environ)
    except OSError:
        return Answer(absent=True)
    except subprocess.TimeoutExpired:
        return Answer(late=True)
    return Answer(tuple(done.stdout.strip().splitlines()), done.returncode)


def lines(*argv: str) -> list[str]:
    """The lines that a tool prints, none where it is absent, fails or takes too long."""
    answer = ask(*argv)
    return [] if answer.failure else list(answer.lines)


def first_line(*argv: str) -> str:
    """The first of them, "" without one."""
    return next(iter(lines(*argv)), "")
