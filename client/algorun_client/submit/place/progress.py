"""How far the uploads are: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import threading
from typing import TextIO

from algorun.common.sizes import size_text
from algorun_client.common.transfer_display import PlainLines, bar


def summary(objects: int, size: int, unchanged: int, copied: int) -> str:
    """What will be uploaded, as one line."""
    same = f"; copying {copied} inside S3" if copied else ""
    same += f"; {unchanged} unchanged" if unchanged else ""
    noun = "object" if objects == 1 else "objects"
    return f"uploading {objects} {noun}, {size_text(size)}{same}" if objects else f"nothing to upload{same}"


class Silent:
    """For --json."""

    def begin(self, objects: int, size: int, unchanged: int, copied: int) -> None:
        pass

    def done(self, size: int) -> None:
        pass

    def end(self) -> None:
        pass


class PlainProgress:
    """Lines on stderr."""

    def __init__(self, err: TextIO | None = None) -> None:
        self._lines, self._lock = PlainLines(err), threading.Lock()
        self._objects = self._size = self._all = self._all_size = 0

    def begin(self, objects: int, size: int, unchanged: int, copied: int) -> None:
        self._all, self._all_size = objects + copied, size
        self._lines.begin()
        self._lines.say(summary(objects, size, unchanged, copied))

    def done(self, size: int) -> None:
        with self._lock:
            self._objects, self._size = self._objects + 1, self._size + size
            if self._lines.is_due():
                sizes = f"{size_text(self._size)} of {size_text(self._all_size)}"
                self._lines.say(f"uploaded {self._objects} of {self._all} objects, {sizes}")

    def end(self) -> None:
        pass


class TerminalProgress:
    """A bar."""

    def __init__(self) -> None:
        self._bar = bar()
        self._task = self._bar.add_task("uploading", start=False)

    def begin(self, objects: int, size: int, unchanged: int, copied: int) -> None:
        self._bar.console.print(f"algorun: {summary(objects, size, unchanged, copied)}")
        if objects or copied:
            self._bar.update(self._task, total=size)
            self._bar.start_task(self._task)
            self._bar.start()

    def done(self, size: int) -> None:
        self._bar.advance(self._task, size)

    def end(self) -> None:
        self._bar.stop()
