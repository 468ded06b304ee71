"""Puts the parts of a trace of steps, which hosts have left, into one file for each attempt (docs/time.md)."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from algorun.common.aside import aside
from algorun.common.codec import loads
from algorun.common.errors import UserError
from algorun.common.written import GENERATOR
from algorun.timing.step_trace import Merged, merged

from .log_files import result_folders

PARTS = "trace_steps-attempt-*-*.json"
LARGEST = 256 << 20  # bytes of a part; with all moments that 8 ranks may note it has 10 MB


def merge(folder: Path, place: Path, prefix: str) -> list[tuple[Merged, Path]]:
    """Writes the traces of a job's folder into the folder `place`, and returns them with their files.

    A part that cannot be read is left out: each trace says how many hosts are in it. Raises UserError if a trace cannot be
    written.
    """
    found: list[object] = []
    for path in sorted(path for each in result_folders(folder) for path in each.path.glob(PARTS)):
        with contextlib.suppress(OSError, ValueError):
            if path.stat().st_size <= LARGEST:
                found.append(loads(path.read_bytes()))
    written = []
    for trace in merged(found):
        path = place / f"{prefix}trace_steps-attempt-{trace.attempt}.json"
        content = {"otherData": {"generator": GENERATOR}, **trace.trace}
        try:
            with aside(path) as made:
                made.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(
                str(path), error.strerror or str(error), fix="--out FILE in a folder with free space"
            ) from None
        written.append((trace, path))
    return written
