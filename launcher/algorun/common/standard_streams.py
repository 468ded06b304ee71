"""stdout and stderr of this process: there from the start, and written whole."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import sys
from collections.abc import Callable

NAMES = {1: "stdout", 2: "stderr"}
SLICE = 64 * 1024  # bytes written at a time: a slow reader takes them in seconds, one that has stopped never
LOOK_AGAIN_S = 0.1  # where a stream that does not block is full
GONE = (errno.EPIPE, errno.EBADF, errno.EIO, errno.ECONNRESET)  # nobody reads any more: no news to anybody


def keep_open() -> None:
    """Opens /dev/null for each standard stream that is closed (`>&-`).

    Else the next file or socket that this process opens gets its number, and the log's lines go into it.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is fd
    for name in NAMES.values():
        if getattr(sys, name) is None:  # as Python leaves it where the stream was closed
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  it stays open


def write_all(fd: int, data: bytes, took: Callable[[int], None] = lambda size: None) -> None:
    """Writes `data` whole, waiting for a reader where `fd` does not block. Calls `took` with the size of each written part.

    Raises OSError where it cannot be written, such as on a full disk.
    """
    view = memoryview(data)
    while view:
        try:
            size = os.write(fd, view[:SLICE])
        except BlockingIOError:
            select.select([], [fd], [], LOOK_AGAIN_S)
            continue
        view = view[size:]
        took(size)


class StandardStream:
    """stdout (1) or stderr (2). A reader that has gone is no fault; a full disk is reported once, on the other stream."""

    def __init__(self, fd: int) -> None:
        self._fd, self._broken = fd, False

    def write(self, data: bytes, took: Callable[[int], None] = lambda size: None) -> None:
        """Writes `data` whole, or drops it once the stream takes no more. `took` is called as by `write_all`."""
        if self._broken:
            return
        try:
            write_all(self._fd, data, took)
        except OSError as error:
            self._broken = True
            if error.errno not in GONE:
                self.warn(
                    f"{error.strerror}; the log ends here, and the job goes on; fix: write it where there is space"
                )

    def warn(self, text: str) -> None:
        """Tells on the other stream what has become of this one. Never waits: the other one may be as full."""
        line = f"algorun: warning: {NAMES[self._fd]}: {text}\n".encode()
        other = 3 - self._fd
        with contextlib.suppress(OSError):
            if select.select([], [other], [], 0)[1]:
                os.write(other, line)
