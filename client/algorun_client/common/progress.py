"""How far uploads and downloads are: a bar of rich on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Protocol, TextIO

from algorun.common.sizes import size_text

if TYPE_CHECKING:
    from rich import progress as rich_progress

LINE_EVERY_S = 10.0


class Progress(Protocol):
    """Shows how far one part after the other is."""

    def begin(self, part: str, size: int | None, *, objects: int | None = None, note: str = "") -> None:
        """`part`, such as `model`, has `size` bytes; None: nobody knows. `note` is said first. `objects`: of an upload."""
        ...

    def moved(self, size: int, objects: int = 0) -> None:
        """So many bytes and whole objects more are there. Called from several threads.

        Fewer than none if a piece is fetched again.
        """
        ...

    def end(self) -> None:
        """The part is there, or it has failed."""
        ...


def for_command(*, is_silent: bool) -> Progress:
    """The progress of a command: none with --json, a bar on a terminal, lines elsewhere."""
    return Silent() if is_silent else TerminalProgress() if sys.stderr.isatty() else PlainProgress()


class Silent:
    """Shows nothing."""

    def begin(self, part: str, size: int | None, *, objects: int | None = None, note: str = "") -> None:
        pass

    def moved(self, size: int, objects: int = 0) -> None:
        pass

    def end(self) -> None:
        pass


class PlainProgress:
    """Lines on stderr. A part that takes less than LINE_EVERY_S has its note alone."""

    def __init__(self, err: TextIO | None = None) -> None:
        self._err, self._lock, self._due = err or sys.stderr, threading.Lock(), 0.0
        self._part, self._of_size, self._of_objects = "", "", ""
        self._size = self._objects = 0

    def begin(self, part: str, size: int | None, *, objects: int | None = None, note: str = "") -> None:
        self._part, self._size, self._objects = part, 0, 0
        self._of_size = "" if size is None else f" of {size_text(size)}"
        self._of_objects = "" if objects is None else f" of {objects} objects, "
        self._due = time.monotonic() + LINE_EVERY_S
        if note:
            self._say(note)

    def moved(self, size: int, objects: int = 0) -> None:
        with self._lock:
            self._size, self._objects = self._size + size, self._objects + objects
            if time.monotonic() < self._due:
                return
            self._due = time.monotonic() + LINE_EVERY_S
            sizes = f"{size_text(self._size)}{self._of_size}"
            counted = f"uploaded {self._objects}{self._of_objects}" if self._of_objects else f"{self._part}: "
            self._say(f"{counted}{sizes}")

    def end(self) -> None:
        pass

    def _say(self, text: str) -> None:
        self._err.write(f"algorun: {text}\n")
        self._err.flush()


class TerminalProgress:
    """A bar for each part, with bytes, speed and the time that is left. It is removed when the part is there."""

    def __init__(self) -> None:
        self._bar = _bar()
        self._task = self._bar.add_task("", visible=False)

    def begin(self, part: str, size: int | None, *, objects: int | None = None, note: str = "") -> None:
        if note:
            self._bar.console.print(f"algorun: {note}")
        if objects == 0:
            return
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(part, total=size)
        self._bar.start()

    def moved(self, size: int, objects: int = 0) -> None:
        self._bar.advance(self._task, size)

    def end(self) -> None:
        self._bar.stop()


def _bar() -> rich_progress.Progress:
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
