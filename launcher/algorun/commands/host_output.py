"""What simulated hosts print, and where it goes: as it is, or onto a terminal (live_output.py)."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol

from algorun.common.standard_streams import StandardStream
from algorun.host.output.logs import Lines

from .simulated_end import SimulatedEnd

LONGEST_LINE = 1024 * 1024  # bytes; a supervisor's lines are shorter: it has broken them, each piece with its prefix
LOOK_S = 1.0  # seconds between two looks at a stop while nothing is printed


class Display(Protocol):
    """Shows a simulated job."""

    look_s: float  # the longest time between two calls of `look`

    def write(self, stream: int, lines: bytes) -> None:
        """Whole lines of a host's stdout (1) or stderr (2)."""
        ...

    def look(self, stopped_s: float | None) -> None:
        """Draws what changes with time. `stopped_s`: seconds since the job was asked to stop, None if it was not."""
        ...

    def end(self, end: SimulatedEnd) -> None:
        """Says how the job has ended."""
        ...


class PlainDisplay:
    """Everything in the order in which it comes, for files, pipes and CI systems."""

    look_s = LOOK_S

    def __init__(self) -> None:
        self._streams = {1: StandardStream(1), 2: StandardStream(2)}

    def write(self, stream: int, lines: bytes) -> None:
        self._streams[stream].write(lines)

    def look(self, stopped_s: float | None) -> None:
        pass

    def end(self, end: SimulatedEnd) -> None:
        with contextlib.suppress(OSError):  # the reader has ended, or its disk is full; the exit code still counts
            if end.failure:
                print("\n".join(end.failure_lines), file=sys.stderr, flush=True)
            print("\n".join([*end.about_lines, end.line]), flush=True)


def display(about: str, trees: Mapping[str, Path], environ: Mapping[str, str]) -> Display:
    """The display for this process's stdout. `about`: the job in a few words; `trees`: the folder of each host."""
    if not os.isatty(1):
        return PlainDisplay()
    from .live_output import LiveDisplay  # elsewhere no start waits for it

    return LiveDisplay(about, trees, environ)


class HostStream:
    """stdout (1) or stderr (2) of one host. Passes on whole lines: hosts that shared a pipe would mix theirs."""

    def __init__(self, pipe: IO[bytes], stream: int, shown: Display) -> None:
        self.pipe, self._stream, self._shown, self._lines = pipe, stream, shown, Lines(LONGEST_LINE)

    def take(self) -> bool:
        """Passes on the output that can be read now. Returns False at the end of the stream."""
        data = os.read(self.pipe.fileno(), 256 * 1024)
        self._shown.write(self._stream, self._lines.feed(data) if data else self._lines.end())
        return bool(data)
