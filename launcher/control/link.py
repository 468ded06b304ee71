"""A host's link to the hub: it tries until it gets through, and says hello."""

from __future__ import annotations

import socket
from collections.abc import Callable

from ..loop import Loop, Timer
from . import messages
from .addresses import look_up
from .connection import Connection
from .messages import Hello, Message
from .refusals import shown
from .waiting import Reach

RETRY_S = (0.02, 0.05, 0.1, 0.25)  # pauses between attempts to reach the hub; the last one repeats
CONNECT_TIMEOUT_S = 3.0
SILENT_S = 3.0  # a hub greets at once; a program that says nothing for so long is another one, or held up
PATIENT_S = 15.0  # of silence, until another connection is tried


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
        *,
        leader: str = "",
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._silence_s = silence_s
        self._reach, self._tell = Reach(loop.now(), leader or where[0], where), tell
        self._silence: Timer | None = None
        self._loop, self._where, self._source, self._token, self._hello = loop, where, source, token, hello
        self._receive, self._lost = receive, lost
        self._connection: Connection | None = None
        self._greeted = False
        self._unsent: list[Message] = []  # what this host has to say once it has said hello
        self._tries = 0
        self._timer: Timer | None = None
        self._closed = False
        self._waiting = loop.at(self._reach.due_at, self._wait)
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

    @property
    def seen(self) -> str:
        """What answered where the hub should be, "" once it has."""
        return "" if self._greeted else self._reach.seen

    def close(self, timeout_s: float = 0.5) -> None:
        self._closed = True
        for timer in (self._timer, self._waiting, self._silence):
            if timer:
                timer.cancel()
        if self._connection is not None:
            self._connection.flush(timeout_s)

    def _again(self) -> None:
        if not self._closed:
            pause = RETRY_S[min(self._tries, len(RETRY_S) - 1)]
            self._tries += 1
            self._timer = self._loop.after(pause, self._try)

    def _say(self, line: str) -> None:
        if line:
            self._tell(line)

    def _wait(self) -> None:
        """The hub has not greeted yet."""
        self._say(self._reach.waits(self._loop.now()))
        self._waiting = self._loop.at(self._reach.due_at, self._wait)

    def _silent(self, connection: Connection) -> None:
        """It has let us in and does not greet."""
        if connection.unread:
            self._say(self._reach.alien(connection.peer, shown(connection.unread)))
            return self._leave(connection)
        self._say(self._reach.silent(connection.peer, SILENT_S))
        self._silence = self._loop.after(PATIENT_S - SILENT_S, lambda: self._leave(connection))
        return None

    def _leave(self, connection: Connection) -> None:
        connection.close()
        self._connection = None
        self._again()

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
            self._reach.failed(getattr(result, "strerror", None) or str(result))
            return self._again()
        if self._closed:
            return result.close()
        connection = self._connection = Connection(self._loop, result, self._line, self._ended)
        self._silence = self._loop.after(SILENT_S, lambda: self._silent(connection))
        return None

    def _ended(self, reason: str) -> None:
        connection, self._connection = self._connection, None
        if self._greeted:
            return self._lost(f"hub lost: {reason}")
        if self._silence:
            self._silence.cancel()
        if connection is not None and connection.unread:
            self._say(self._reach.alien(connection.peer, shown(connection.unread)))
        elif connection is not None:
            self._reach.failed(reason, connection.peer)
        return self._again()

    def _line(self, line: bytes) -> None:
        assert self._connection is not None
        if self._silence:
            self._silence.cancel()
        try:
            message = messages.decode(line)
            if not self._greeted:
                if message["type"] != "nonce":
                    raise ValueError("no nonce")
                self._greeted = True
                self._waiting.cancel()
                self._connection.user_timeout(self._silence_s)
                nonce = str(message.get("nonce", ""))
                self._connection.send(self._hello.message(messages.mac(self._token, nonce, self._hello.host)))
                for waiting in self._unsent:
                    self._connection.send(waiting)
            self._receive(message)
        except ValueError as error:
            if not self._greeted:
                self._say(self._reach.alien(self._connection.peer, shown(line)))
                return self._leave(self._connection)
            self._connection.close()
            self._connection = None
            self._lost(f"hub lost: sent an unusable message: {error}")
        return None
