"""What processes print, read without ever blocking."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

from algorun.common.event_loop import READ, Loop

from .logs import Console, RankLog

CHUNK = 256 * 1024  # bytes read from a rank at a time
BUSY_RETRY_S = 0.02  # pause while the console is full
LAST_CHUNKS = 64  # at most, after a rank's end: a child of the rank may write for ever


class Pipe:
    """Reads one stream of one process into a log until its end."""

    def __init__(self, loop: Loop, fd: int, console: Console, feed: Callable[[bytes], None]) -> None:
        self._loop, self.fd, self._console, self._feed = loop, fd, console, feed
        self.open = True
        os.set_blocking(fd, False)
        loop.watch(fd, READ, self._read)

    def _read(self, _: int) -> None:
        if self._console.full:  # the ranks wait here, the heartbeats do not
            self._loop.forget(self.fd)
            self._loop.after(BUSY_RETRY_S, self._resume)
            return
        self.take()

    def _resume(self) -> None:
        if self.open:
            self._loop.watch(self.fd, READ, self._read)

    def take(self) -> bool:
        """Reads at most one chunk. False at the stream's end, or where nothing is there."""
        try:
            data = os.read(self.fd, CHUNK) if self.open else b""
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self._feed(data)
            return True
        self.close()
        return False

    def drain(self) -> None:
        """Reads what is there now, within bounds."""
        for _ in range(LAST_CHUNKS):
            if not self.take():
                break

    def close(self) -> None:
        if self.open:
            self.open = False
            self._loop.forget(self.fd)
            os.close(self.fd)
            self._feed(b"")


class Pipes:
    """The pipes from one or more processes into their logs."""

    def __init__(self, loop: Loop, console: Console) -> None:
        self._loop, self._console = loop, console
        self._pipes: list[Pipe] = []

    def into(self, log: RankLog, stream: int) -> int:
        """A pipe into a log, as stdout (1) or stderr (2); returns its writing end, which the caller closes."""
        reader, writer = os.pipe()
        self._pipes.append(Pipe(self._loop, reader, self._console, functools.partial(log.feed, stream)))
        return writer

    def drain(self) -> None:
        """Reads what is there now: the last lines of processes that have ended."""
        for pipe in self._pipes:
            pipe.drain()

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
