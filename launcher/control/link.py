"""A host's link to the hub: it tries until it gets through, and says hello."""

from __future__ import annotations

import socket
from collections.abc import Callable

from ..loop import Loop, Timer
from . import messages
from .addresses import look_up
from .connection import Connection
from .messages import Hello, Message

RETRY_S = (0.02, 0.05, 0.1, 0.25)  # pauses between attempts to reach the hub; the last one repeats
CONNECT_TIMEOUT_S = 3.0


class HubLink:
    """A follower's connection to the hub. It tries until it is told to stop, and says hello when it gets through."""

    def __init__(
        self,
        loop: Loop,
        where: tuple[str, int],
        source: str,
        token: str,
        hello: Hello,
        receive: Callable[[Message], None],
        lost: Callable[[str], None],
        silence_s: float,
    ) -> None:
        self._silence_s = silence_s
        self._loop, self._where, self._source, self._token, self._hello = loop, where, source, token, hello
        self._receive, self._lost = receive, lost
        self._connection: Connection | None = None
        self._greeted = False
        self._unsent: list[Message] = []  # what this host has to say once it has said hello
        self._tries = 0
        self._timer: Timer | None = None
        self._closed = False
        self._try()

    def send(self, message: Message) -> None:
        if self._connection is not None and self._greeted:
            self._connection.send(message)
        elif message["type"] != "heartbeat":
            self._unsent.append(message)

    @property
    def finished(self) -> bool:
        """Nobody waits for this host."""
        return True

    def close(self, timeout_s: float = 0.5) -> None:
        self._closed = True
        if self._timer:
            self._timer.cancel()
        if self._connection is not None:
            self._connection.flush(timeout_s)

    def _again(self) -> None:
        if not self._closed:
            pause = RETRY_S[min(self._tries, len(RETRY_S) - 1)]
            self._tries += 1
            self._timer = self._loop.after(pause, self._try)

    def _try(self) -> None:
        self._loop.in_thread(self._connect, self._connected)

    def _connect(self) -> socket.socket:
        """Resolves and connects, in a thread: both may block."""
        error: OSError = OSError("no address")
        for family, address in look_up(*self._where):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.settimeout(CONNECT_TIMEOUT_S)
                if self._source:
                    sock.bind((self._source, 0))
                sock.connect(address)
            except OSError as failed:
                sock.close()
                error = failed
            else:
                return sock
        raise error

    def _connected(self, result: socket.socket | Exception) -> None:
        if isinstance(result, Exception):
            return self._again()
        if self._closed:
            return result.close()
        self._connection = Connection(self._loop, result, self._line, self._ended)
        return None

    def _ended(self, reason: str) -> None:
        self._connection = None
        if self._greeted:
            self._lost(f"hub lost: {reason}")
        else:
            self._again()

    def _line(self, line: bytes) -> None:
        assert self._connection is not None
        try:
            message = messages.decode(line)
            if not self._greeted:
                if message["type"] != "nonce":
                    raise ValueError("no nonce")
                self._greeted = True
                self._connection.user_timeout(self._silence_s)
                nonce = str(message.get("nonce", ""))
                self._connection.send(self._hello.message(messages.mac(self._token, nonce, self._hello.host)))
                for waiting in self._unsent:
                    self._connection.send(waiting)
            self._receive(message)
        except ValueError as error:
            self._connection.close()
            self._connection = None
            if self._greeted:
                self._lost(f"hub lost: sent an unusable message: {error}")
            else:
                self._again()
