"""How uploads and downloads are shown: a bar of rich on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

LINE_EVERY_S = 10.0


def bar() -> Progress:
    """A bar on stderr with bytes, speed and the time that is left. It is removed when it stops."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True, highlight=False),
        transient=True,
    )


class PlainLines:
    """Lines on stderr."""

    def __init__(self, err: TextIO | None = None) -> None:
        self._err = err or sys.stderr
        self._next = 0.0

    def begin(self) -> None:
        """The first line is due in LINE_EVERY_S."""
        self._next = time.monotonic() + LINE_EVERY_S

    def is_due(self) -> bool:
        """True once every LINE_EVERY_S. Not for two threads at once."""
        if time.monotonic() < self._next:
            return False
        self.begin()
        return True

    def say(self, text: str) -> None:
        """Prints a line."""
        self._err.write(f"algorun: {text}\n")
        self._err.flush()
