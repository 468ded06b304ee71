"""A follower's first connection to the hub: tried until a hub proves itself, with a warning of whatever else answers."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol

from algorun.common.event_loop import Loop, Timer
from algorun.control.hub.refusals import shown
from algorun.control.hub.waiting import Reach
from algorun.control.wire.introduction import refusal
from algorun.control.wire.seal import is_sealed

from .connection import Connection
from .spare_search import Route

RETRY_S = (0.02, 0.05, 0.1, 0.25)  # pauses between attempts to reach the hub; the last one repeats
CONNECT_TIMEOUT_S = 3.0
SILENT_S = 3.0  # a hub greets and answers at once; a program that says nothing for so long is another one, or held up
PATIENT_S = 15.0  # of silence, until another connection is tried


class Reaching(Protocol):
    """What the first contact needs of the link."""

    def reached(self, sock: socket.socket) -> Connection:
        """A connection was made: it is the one in use from now on."""

    def given_up(self) -> None:
        """It was no hub's, and is closed."""


class FirstContact:
    """Tries until `proven` or `close` is called. `tell` prints a line."""

    def __init__(self, loop: Loop, route: Route, link: Reaching, tell: Callable[[str], None]) -> None:
        self._loop, self._route, self._link, self._tell = loop, route, link, tell
        self._reach = Reach(loop.now(), route.leader, route.where)
        self._tries = 0
        self._closed = False
        self._silence: Timer | None = None  # of what was reached in the hub's place
        self._reached: Connection | None = None  # to it, until a whole line comes
        self._waiting = loop.at(self._reach.due_at, self._wait)
        self._try()

    @property
    def seen(self) -> str:
        """The last thing that was seen where the hub should be. The wait may end before a silence is long enough."""
        if (connection := self._reached) is None:
            return self._reach.seen
        return self._reach.with_open(connection.peer, _begun(connection), greeted=connection.greeted)

    def proven(self) -> None:
        """The hub has proved itself: nobody waits for it any more."""
        self._waiting.cancel()
        self._heard()

    def greeted(self, connection: Connection) -> None:
        """What was reached greets as a hub does. It has as long to prove itself as it had to greet."""
        self._heard()
        self._expect(connection)

    def alien(self, connection: Connection, line: bytes) -> None:
        """This line is no hub's."""
        self._warn(self._reach.alien(connection.peer, shown(line)))
        self._give_up(connection)

    def unproven(self, connection: Connection, line: bytes) -> None:
        """What has greeted as a hub does sends a line that does not prove the token. A hub with another token refuses so."""
        said = refusal(line).encode() or (b"" if is_sealed(line) else line)
        self._warn(self._reach.unproven(connection.peer, shown(said) if said else ""))
        self._give_up(connection)

    def ended(self, connection: Connection, reason: str) -> None:
        """The connection has ended before this host has joined."""
        self._heard()
        if connection.unread:
            self._warn(self._reach.alien(connection.peer, shown(connection.unread)))
        else:
            self._reach.failed(reason, connection.peer)
        self._try_again()

    def close(self) -> None:
        """Nothing is tried any more."""
        self._closed = True
        self._waiting.cancel()
        self._heard()

    def _try(self) -> None:
        if not self._closed:
            self._loop.in_thread(lambda: self._route.look_up_and_connect(CONNECT_TIMEOUT_S), self._connected)

    def _try_again(self) -> None:
        pause = RETRY_S[min(self._tries, len(RETRY_S) - 1)]
        self._tries += 1
        self._loop.after(pause, self._try)

    def _connected(self, result: socket.socket | Exception) -> None:
        if isinstance(result, Exception):
            self._reach.failed(getattr(result, "strerror", None) or str(result))
            return self._try_again()
        if self._closed:
            return result.close()
        return self._expect(self._link.reached(result))

    def _expect(self, connection: Connection) -> None:
        """The next line of this connection is due."""
        self._reached = connection
        self._silence = self._loop.after(SILENT_S, lambda: self._silent(connection))

    def _heard(self) -> None:
        """What was reached is not silent, or no longer there."""
        self._reached = None
        if self._silence is not None:
            self._silence.cancel()

    def _silent(self, connection: Connection) -> None:
        """A connection was made, and no whole line has come, or none that proves the token."""
        if connection.greeted:
            self._warn(self._reach.unproven(connection.peer, _begun(connection)))
        elif connection.unread:
            return self.alien(connection, connection.unread)
        else:
            self._warn(self._reach.silent(connection.peer, SILENT_S))
        self._silence = self._loop.after(PATIENT_S - SILENT_S, lambda: self._give_up(connection))
        return None

    def _give_up(self, connection: Connection) -> None:
        self._heard()
        connection.reset()
        self._link.given_up()
        self._try_again()

    def _wait(self) -> None:
        """A line about the wait is due."""
        self._warn(self._reach.waits(self._loop.now()))
        self._waiting = self._loop.at(self._reach.due_at, self._wait)

    def _warn(self, line: str) -> None:
        if line:
            self._tell(line)


def _begun(connection: Connection) -> str:
    """The beginning of a line whose end has not come, to be shown; "" for none."""
    return shown(connection.unread) if connection.unread else ""
