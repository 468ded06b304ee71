"""Asks a program one thing. For `algorun doctor` and tests: no start of a job waits for it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

TIMEOUT_S = 20.0


def lines(*argv: str, environ: Mapping[str, str] | None = None) -> list[str]:
    """The lines that a tool prints, none where it is absent, fails or takes too long."""
    if shutil.which(argv[0]) is None:
        return []
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environ)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def first_line(*argv: str) -> str:
    """The first of them, "" without one."""
    return next(iter(lines(*argv)), "")
