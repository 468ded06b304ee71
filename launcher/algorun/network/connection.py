"""Lines over one TCP socket, never blocking; once both sides are known to each other, sealed ones."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Callable
from enum import Enum

from algorun.common.event_loop import READ, WRITE, Loop
from algorun.common.fast_dataclasses import dataclass
from algorun.control.wire import seal, wire
from algorun.control.wire.messages import Message
from algorun.control.wire.seal import Seal

UNSENT = 4 * 1024 * 1024  # bytes to a peer that does not read, before it counts as lost
LONGEST = wire.LONGEST + seal.LENGTH  # bytes of a line
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: closed with a reset, and what is unsent is lost


class How(Enum):
    CLOSED = "closed"  # the peer's kernel has closed the connection: the peer is gone, or wants no more
    RESET = "reset"  # by the peer's kernel, or by somebody between: the peer may be alive, and may come back at once
    BROKEN = "broken"  # the network has failed: nothing is known of the peer


@dataclass(frozen=True, slots=True)
class ConnectionEnd:
    """How a connection has ended without this side closing it. `why` is for people, "" where there is nothing to say."""

    how: How
    why: str


class Connection:
    """Lines over one non-blocking socket. Calls `on_line(bytes)` for each line, and `on_end(ending)` once at the end.

    `on_end` is not called where this side closes the connection.
    """

    def __init__(
        self, loop: Loop, sock: socket.socket, on_line: Callable[[bytes], None], on_end: Callable[[ConnectionEnd], None]
    ) -> None:
        self._loop, self._sock = loop, sock
        self._on_line, self._on_end = on_line, on_end
        self._seal: Seal | None = None
        self._on_stranger: Callable[[bytes], None] | None = None
        self._received, self._unsent = b"", b""
        self._open, self._closing = True, False
        try:
            self.peer = str(sock.getpeername()[0])  # asked now: a connection that has ended no longer has one
        except OSError:
            self.peer = ""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.watch(sock, READ, self._ready)

    def listen(self, on_line: Callable[[bytes], None], on_end: Callable[[ConnectionEnd], None]) -> None:
        """Calls these from now on, once the peer has said who it is."""
        self._on_line, self._on_end = on_line, on_end

    def sealed(self, by: Seal, on_stranger: Callable[[bytes], None] | None = None) -> None:
        """From now on all lines are sealed, both ways. What `on_line` gets is proven, and has lost its seal.

        `on_stranger` gets a line that proves nothing, as long as the peer has not proved itself by another one. Afterwards
        such a line ends the connection as a reset does: somebody between has changed what passes.
        """
        self._seal, self._on_stranger = by, on_stranger

    @property
    def greeted(self) -> bool:
        """True once lines are sealed."""
        return self._seal is not None

    @property
    def unread(self) -> bytes:
        """The beginning of a line whose end has not come yet."""
        return self._received

    def send(self, message: Message) -> None:
        """Queues a message. A connection that has ended drops it."""
        if self._open:
            line = wire.encode(message)
            self._unsent += self._seal.close(line) if self._seal is not None else line
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

    def reset(self) -> None:
        """Ends the connection at once, and not as one that wants no more: if the peer is of the job, one of them comes back."""
        if self._open:
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            self._shut()

    def _shut(self) -> None:
        if self._open:
            self._open = False
            self._loop.forget(self._sock)
            self._sock.close()

    def _ended(self, how: How, why: str) -> None:
        if self._open:
            self._shut()
            self._on_end(ConnectionEnd(how, why))

    def _failed(self, error: OSError) -> None:
        match error.errno:
            case errno.ECONNRESET:
                self._ended(How.RESET, "connection reset")
            case errno.EPIPE:  # a reset of what the peer had closed before
                self._ended(How.CLOSED, "connection closed")
            case _:
                self._ended(How.BROKEN, "")

    def _forged(self, why: str) -> None:
        if self._open:
            self.reset()
            self._on_end(ConnectionEnd(How.RESET, why))

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
            return self._failed(error)
        if not data:
            return self._ended(How.CLOSED, "connection closed")
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            if self._open and not self._closing:  # lines behind the one that made us close it are dropped
                self._take(line)
        if len(self._received) > LONGEST:
            if self._seal is not None and self._seal.proven:
                return self._forged("a line too long to be the peer's")
            self._ended(How.CLOSED, "line too long")
        return None

    def _take(self, line: bytes) -> None:
        if self._seal is None:
            return self._on_line(line)
        known = self._seal.proven
        try:
            inner = self._seal.open(line)
        except ValueError as error:
            if self._on_stranger is not None and not known:
                return self._on_stranger(line)
            return self._forged(str(error))
        return self._on_line(inner)

    def _write(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except BlockingIOError:
            if len(self._unsent) > UNSENT:
                return self._ended(How.CLOSED, "does not read")
        except OSError as error:
            return self._failed(error)
        if self._closing and not self._unsent:
            return self._shut()
        if self._open:
            self._loop.watch(self._sock, READ | WRITE if self._unsent else READ, self._ready)
        return None
