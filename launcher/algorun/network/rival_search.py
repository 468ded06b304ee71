"""Asks the hosts that a hub misses whether they lead the job too.

They do where their files list the hosts in another order.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable

from algorun.common.event_loop import Loop, Timer
from algorun.control.hub.hub import Hub, Sends
from algorun.control.hub.refusals import shown
from algorun.control.hub.rivals import MOST_ASKED, Looks
from algorun.control.wire import wire
from algorun.control.wire.introduction import Applicant, greeting, refusal
from algorun.control.wire.messages import Bye, End, Heartbeat, Notice, Refuse
from algorun.job.limits import ControlSettings

from .connection import Connection
from .nonces import fresh

CONNECT_S = 1.0
LOOK_S = 2.5  # for one look: connections and answers


class Lookout:
    """Asks the missing hosts now and then, until all have come or the job has ended.

    Nothing listens on the control port of a follower: it refuses the connection, and nothing follows. `send` takes the
    hub's messages.
    """

    def __init__(
        self, loop: Loop, hub: Hub, own: Applicant, settings: ControlSettings, send: Callable[[Sends], None]
    ) -> None:
        self._loop, self._hub, self._own, self._settings, self._send = loop, hub, own, settings, send
        self._looks = Looks()
        self._links: dict[str, Connection] = {}
        self._refused: set[str] = set()
        self._next = loop.after(self._looks.pause_s, self.look)
        self._limit: Timer | None = None  # of the look under way
        self._closed = False

    def look(self) -> None:
        """Asks now: another leader has come, or it is time."""
        if self._limit is not None or self._closed:
            return
        missing = sorted(self._hub.missing)[:MOST_ASKED]
        self._next.cancel()
        if not missing:
            return
        asked = [host for host in missing if host not in self._links]
        self._looks.begin(asked)
        self._next = self._loop.after(self._looks.pause_s, self.look)
        self._limit = self._loop.after(LOOK_S, self._looked)
        for host in asked:
            connected = functools.partial(self._connected, self._looks.number, host)
            self._loop.in_thread(functools.partial(self._connect, host), connected)
        self._end_if_complete()

    def close(self, timeout_s: float = 0.0) -> None:
        """No connection stays."""
        self._closed = True
        self._next.cancel()
        if self._limit is not None:
            self._limit.cancel()
        for connection in self._links.values():
            connection.flush(timeout_s)
        self._links.clear()

    def _end_if_complete(self) -> None:
        if self._looks.complete and self._limit is not None:
            self._looked()

    def _looked(self) -> None:
        """The look is over."""
        if self._limit is not None:
            self._limit.cancel()
        self._limit = None
        self._send(self._hub.rivals_asked(self._loop.now(), self._looks.answered))

    def _connect(self, host: str) -> socket.socket:
        addresses = self._settings.addresses
        own = addresses.get(self._own.hello.host, "")
        where = (addresses.get(host, host), self._settings.port)
        return socket.create_connection(where, CONNECT_S, (own, 0) if own else None)

    def _connected(self, look: int, host: str, result: socket.socket | Exception) -> None:
        if self._closed or look != self._looks.number:  # a later look asks this host itself
            return None if isinstance(result, Exception) else result.close()
        if isinstance(result, Exception):
            self._looks.unreachable(host)
            return self._end_if_complete()
        connection = self._links[host] = Connection(
            self._loop, result, functools.partial(self._line, host), lambda _: self._leave(host, connection)
        )
        self._loop.after(LOOK_S, lambda: None if host in self._looks.answered else self._leave(host, connection))
        return None

    def _leave(self, host: str, connection: Connection) -> None:
        """Nothing more is to come over this connection."""
        if self._links.get(host) is connection:
            del self._links[host]
            connection.close()
            self._looks.gone(host)
            self._end_if_complete()

    def _line(self, host: str, line: bytes) -> None:
        connection = self._links[host]
        try:
            if connection.greeted:
                self._hear(host, connection, line)
            else:
                hello, by = self._own.answer(greeting(line), fresh(), session=fresh())
                connection.sealed(by, functools.partial(self._stranger, host, connection))
                connection.send(hello)
        except ValueError:  # whatever answers there is none of ours
            self._leave(host, connection)

    def _stranger(self, host: str, connection: Connection, line: bytes) -> None:
        """Whoever answers there does not prove that it holds the job's token."""
        if why := refusal(line):
            self._was_refused(host, why)
        self._leave(host, connection)

    def _hear(self, host: str, connection: Connection, line: bytes) -> None:
        match wire.decode(line):
            case Heartbeat():
                self._looks.leads(host)
                self._end_if_complete()
            case End(verdict):
                self._send(self._hub.ended_by_rival(self._loop.now(), host, verdict))
                connection.send(Bye(informed=tuple(self._hub.gate.hellos)))
                self._leave(host, connection)
            case Refuse(why):
                self._was_refused(host, why)
                self._leave(host, connection)

    def _was_refused(self, host: str, why: str) -> None:
        """A hub of another job, or of this one with another list of hosts: that host may still come."""
        if host not in self._refused:
            self._refused.add(host)
            text = f"{host} runs a hub as well, which refuses this host: {shown(why.encode())}"
            self._send([(self._hub.leader, Notice(text))])
