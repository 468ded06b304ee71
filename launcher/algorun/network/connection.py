"""Lines over one TCP socket, never blocking."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable

from algorun.common.event_loop import READ, WRITE, Loop
from algorun.control import wire
from algorun.control.messages import Message

UNSENT = 4 * 1024 * 1024  # bytes to a peer that does not read, before it counts as lost
CLOSED = frozenset({errno.ECONNRESET, errno.EPIPE})  # the peer's kernel says so; other errors are the network's


class Connection:
    """Lines over one non-blocking socket. Calls `on_line(bytes)` for each line, and `on_end(reason)` once at the end.

    `on_end` is not called where this side closes the connection. The reason is "" where the network has failed: the
    peer may still be there.
    """

    def __init__(
        self, loop: Loop, sock: socket.socket, on_line: Callable[[bytes], None], on_end: Callable[[str], None]
    ) -> None:
        self._loop, self._sock = loop, sock
        self._on_line, self._on_end = on_line, on_end
        self._received, self._unsent = b"", b""
        self._open, self._closing = True, False
        try:
            self.peer = str(sock.getpeername()[0])  # asked now: a connection that has ended no longer has one
        except OSError:
            self.peer = ""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.watch(sock, READ, self._ready)

    def listen(self, on_line: Callable[[bytes], None], on_end: Callable[[str], None]) -> None:
        """Calls these from now on, once the peer has said who it is."""
        self._on_line, self._on_end = on_line, on_end

    @property
    def unread(self) -> bytes:
        """The beginning of a line whose end has not come yet."""
        return self._received

    def send(self, message: Message) -> None:
        """Queues a message. A connection that has ended drops it."""
        if self._open:
            self._unsent += wire.encode(message)
            self._write()

    def close(self) -> None:
        """Ends the connection once everything is written."""
        self._closing = True
        if not self._unsent:
            self._shut()

    def flush(self, timeout_s: float) -> None:
        """Writes what is left, blocking for at most `timeout_s`: last words before an exit."""
        if self._open and self._unsent:
            with contextlib.suppress(OSError):
                self._sock.settimeout(timeout_s)
                self._sock.sendall(self._unsent)
        self._shut()

    def rest(self) -> None:
        """Neither reads nor writes from now on; the peer does not notice."""
        self._loop.forget(self._sock)
        self._unsent = b""

    def abandon(self) -> None:
        """Ends the connection at once; what is unsent is lost."""
        self._shut()

    def _shut(self) -> None:
        if self._open:
            self._open = False
            self._loop.forget(self._sock)
            self._sock.close()

    def _lost(self, reason: str) -> None:
        if self._open:
            self._shut()
            self._on_end(reason)

    def _broken(self, error: OSError) -> None:
        self._lost(error.strerror or "broken" if error.errno in CLOSED else "")

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._write()
        if events & READ and self._open:
            self._read()

    def _read(self) -> None:
        try:
            data = self._sock.recv(65536)
        except BlockingIOError:
            return
        except OSError as error:
            return self._broken(error)
        if not data:
            return self._lost("connection closed")
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            if self._open and not self._closing:  # lines behind the one that made us close it are dropped
                self._on_line(line)
        if len(self._received) > wire.LONGEST:
            self._lost("line too long")
        return None

    def _write(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except BlockingIOError:
            if len(self._unsent) > UNSENT:
                return self._lost("does not read")
        except OSError as error:
            return self._broken(error)
        if self._closing and not self._unsent:
            return self._shut()
        if self._open:
            self._loop.watch(self._sock, READ | WRITE if self._unsent else READ, self._ready)
        return None
