"""Says every few seconds how far the unpacking of a channel is."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import IO

from algorun.common.sizes import size_text

EVERY_S = 5.0


class SetupProgress:
    """A thread that prints a line every EVERY_S seconds: one member of an archive may take minutes."""

    def __init__(self, channel: str, total: int, say: Callable[[str], None]) -> None:
        self.files, self.written = 0, 0  # members begun, and their bytes
        self._channel, self._total, self._say = channel, total, say
        self._read, self._name = 0, ""
        self._raw: IO[bytes] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> SetupProgress:
        with contextlib.suppress(RuntimeError):  # no further thread can start: the lines are missing, and nothing else
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(EVERY_S)

    def begins(self, name: str) -> None:
        """The next archive."""
        self._name = name

    def follows(self, raw: IO[bytes]) -> None:
        """The file of this archive: its position is the progress."""
        self._raw = raw

    def file(self, size: int) -> None:
        """A member of this many bytes is being written."""
        self.files += 1
        self.written += size

    def ends(self, size: int) -> None:
        """The archive of this many bytes is unpacked."""
        self._raw, self._read = None, self._read + size

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            read, raw = self._read, self._raw
            if raw is not None:
                with contextlib.suppress(ValueError, OSError):  # it was closed in this moment
                    read += raw.tell()
            done = 100 * read // max(self._total, 1)
            self._say(
                f"channel {self._channel}: {done} % of {size_text(self._total)} read, {self.files} files "
                f"({size_text(self.written)}), now {self._name}"
            )
