"""How far the downloads are: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TextIO, TypeVar

from algorun.common.sizes import size_text
from algorun_client.common.transfer_display import PlainLines, bar


class Progress(Protocol):
    """Shows how far one part after the other is."""

    def begin(self, part: str, size: int | None) -> None:
        """`part`, such as `model`, has `size` bytes; None: nobody knows."""
        ...

    def moved(self, size: int) -> None:
        """So many bytes have come; fewer than none if a piece is fetched again. Called from several threads."""
        ...

    def end(self) -> None:
        """The part is there, or it has failed."""
        ...


class Silent:
    """For --json."""

    def begin(self, part: str, size: int | None) -> None:
        pass

    def moved(self, size: int) -> None:
        pass

    def end(self) -> None:
        pass


class PlainProgress:
    """Lines on stderr; none for what takes less than ten seconds."""

    def __init__(self, err: TextIO | None = None) -> None:
        self._lines, self._lock = PlainLines(err), threading.Lock()
        self._part, self._all, self._size = "", "", 0

    def begin(self, part: str, size: int | None) -> None:
        self._part, self._all = part, "" if size is None else f" of {size_text(size)}"
        self._size = 0
        self._lines.begin()

    def moved(self, size: int) -> None:
        with self._lock:
            self._size += size
            if self._lines.is_due():
                self._lines.say(f"{self._part}: {size_text(self._size)}{self._all}")

    def end(self) -> None:
        pass


class TerminalProgress:
    """A bar for each part, which is removed when the part is there."""

    def __init__(self) -> None:
        self._bar = bar()
        self._task = self._bar.add_task("", visible=False)

    def begin(self, part: str, size: int | None) -> None:
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(part, total=size)
        self._bar.start()

    def moved(self, size: int) -> None:
        self._bar.advance(self._task, size)

    def end(self) -> None:
        self._bar.stop()


class Text(Protocol):
    """A line of a host: `follow.log_reader.LogLine`."""

    @property
    def text(self) -> str: ...


Line = TypeVar("Line", bound=Text)


def counted(batches: Iterable[Sequence[Line]], progress: Progress) -> Iterator[Sequence[Line]]:
    """The same batches of lines; the characters that have come are told."""
    for batch in batches:
        progress.moved(sum(len(line.text) for line in batch))
        yield batch
