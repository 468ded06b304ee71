"""Runs a program and returns what it prints. For `algorun doctor` and tests; the start of a job never waits for it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

from algorun.common.fast_dataclasses import dataclass

TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class ProgramAnswer:
    """What a program printed, and how it ended."""

    lines: tuple[str, ...] = ()
    code: int = 0  # its exit code; -n if signal n ended it
    late: bool = False  # it was killed after TIMEOUT_S
    absent: bool = False  # it could not be started

    @property
    def failure(self) -> str:
        """How it failed, "" if it did not."""
        if self.absent:
            return "its program cannot be started"
        if self.late:
            return f"no answer within {TIMEOUT_S:g} s"
        if self.code < 0:
            return f"its process was ended by signal {-self.code}"
        return f"its process exited with {self.code}" if self.code else ""


def ask(*argv: str, environ: Mapping[str, str] | None = None) -> ProgramAnswer:
    """Runs a program until it ends, for TIMEOUT_S at most."""
    if shutil.which(argv[0]) is None:
        return ProgramAnswer(absent=True)
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environ)
    except OSError:
        return ProgramAnswer(absent=True)
    except subprocess.TimeoutExpired:
        return ProgramAnswer(late=True)
    return ProgramAnswer(tuple(done.stdout.strip().splitlines()), done.returncode)


def lines(*argv: str) -> list[str]:
    """The lines that a program prints; none if it is absent, fails or takes longer than TIMEOUT_S."""
    answer = ask(*argv)
    return [] if answer.failure else list(answer.lines)


def first_line(*argv: str) -> str:
    """The first line that a program prints; "" if `lines` has none."""
    return next(iter(lines(*argv)), "")
