"""The lines of a job as files: one for each host and start."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from .in_place import put_in_place


class Line(Protocol):
    """A line of a host: `follow.log_reader.LogLine`."""

    @property
    def stream(self) -> str: ...  # algo-1-EPOCH

    @property
    def time_ms(self) -> int: ...  # since 1970

    @property
    def text(self) -> str: ...


def write_logs(batches: Iterable[Iterable[Line]], folder: Path) -> int:
    """Writes `STREAM.log` for each stream, and beside it `STREAM.times`: the milliseconds since 1970 of each line.

    The folder is replaced as a whole. Returns the number of logs.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".algorun-", dir=folder.parent) as aside:
        made = Path(aside, "made")
        made.mkdir()
        streams: set[str] = set()
        for batch in batches:
            of_streams: dict[str, list[Line]] = {}
            for line in batch:
                of_streams.setdefault(line.stream.replace(os.sep, "_"), []).append(line)
            for stream, lines in of_streams.items():
                _append(made / stream, lines)
            streams |= of_streams.keys()
        put_in_place(made, folder, Path(aside))
    return len(streams)


def _append(path: Path, lines: Iterable[Line]) -> None:
    """Adds lines to `path`.log and `path`.times. Closes both: a job may have more streams than a process open files."""
    with (
        open(f"{path}.log", "a", encoding="utf-8", errors="backslashreplace") as log,
        open(f"{path}.times", "a", encoding="ascii") as times,
    ):
        for line in lines:
            text = line.text.rstrip("\n") + "\n"
            log.write(text)
            times.write(f"{line.time_ms}\n" * text.count("\n"))
