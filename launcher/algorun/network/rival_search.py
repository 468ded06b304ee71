"""Asks the hosts that a hub misses whether they lead the job too, as they do where files list different orders."""

from __future__ import annotations

import functools
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from algorun.control import proof, wire
from algorun.control.hub import Hub, Sends
from algorun.control.messages import Bye, End, Heartbeat, Hello, Nonce, Refuse
from algorun.control.refusals import shown
from algorun.event_loop import Loop, Timer

from .connection import Connection

FIRST_S = 1.5  # until the first look: the hosts of a job that starts as it should have come by then
LONGEST_PAUSE_S = 60.0  # between two looks; each pause is twice as long as the one before
CONNECT_S = 1.0
LOOK_S = 2.5  # of one look, connections and answers
AT_ONCE = 4  # threads that connect
MOST_ASKED = 32  # hosts in one look


class Lookout:
    """The leader's looks at the hosts it misses, from `FIRST_S` on until all have come or the job has ended.

    Nothing listens on the control port of a follower, so it notices no more than a refused connection.
    """

    def __init__(
        self,
        loop: Loop,
        hub: Hub,
        hello: Hello,
        token: str,
        where: tuple[Mapping[str, str], int],
        send: Callable[[Sends], None],
        tell: Callable[[str], None],
    ) -> None:
        self._loop, self._hub, self._hello, self._token, self._send, self._tell = loop, hub, hello, token, send, tell
        self._addresses, self._port = where
        self._links: dict[str, Connection] = {}
        self._answered: set[str] = set()  # leaders that have no verdict yet
        self._refused: set[str] = set()
        self._to_ask: deque[str] = deque()
        self._awaited: set[str] = set()  # of the look under way
        self._pause_s = FIRST_S
        self._timer: Timer | None = loop.after(FIRST_S, self.look)
        self._limit: Timer | None = None
        self._closed = False

    def look(self) -> None:
        """Asks now; another leader has come, or it is time."""
        if self._limit is not None or self._closed:
            return
        missing = sorted(self._hub.missing)[:MOST_ASKED]
        if self._timer:
            self._timer.cancel()
        if not missing:
            return
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._timer = self._loop.after(self._pause_s, self.look)
        self._limit = self._loop.after(LOOK_S, self._looked)
        asked = [host for host in missing if host not in self._links]
        self._to_ask, self._awaited = deque(asked), set(asked)
        for _ in range(AT_ONCE):
            self._ask_next()
        self._settle("")

    def close(self, timeout_s: float = 0.0) -> None:
        """No connection stays."""
        self._closed = True
        for timer in (self._timer, self._limit):
            if timer:
                timer.cancel()
        for connection in self._links.values():
            connection.flush(timeout_s)
        self._links.clear()

    def _looked(self) -> None:
        """All have answered, or had their time to."""
        if self._limit:
            self._limit.cancel()
        self._limit = None
        self._to_ask.clear()
        self._send(self._hub.rivals_asked(self._loop.now(), self._answered))

    def _settle(self, host: str) -> None:
        self._awaited.discard(host)
        if not self._awaited and self._limit is not None:
            self._looked()

    def _ask_next(self) -> None:
        if self._to_ask and not self._closed:
            host = self._to_ask.popleft()
            self._loop.in_thread(functools.partial(self._connect, host), functools.partial(self._connected, host))

    def _connect(self, host: str) -> socket.socket:
        own = self._addresses.get(self._hello.host, "")
        where = (self._addresses.get(host, host), self._port)
        return socket.create_connection(where, CONNECT_S, (own, 0) if own else None)

    def _connected(self, host: str, result: socket.socket | Exception) -> None:
        self._ask_next()
        if isinstance(result, Exception):
            return self._settle(host)
        if self._closed or host in self._links:
            return result.close()
        connection = self._links[host] = Connection(
            self._loop, result, functools.partial(self._line, host), lambda _: self._leave(host, connection)
        )
        self._loop.after(LOOK_S, lambda: None if host in self._answered else self._leave(host, connection))
        return None

    def _leave(self, host: str, connection: Connection) -> None:
        """Nothing more is to come over this connection."""
        if self._links.get(host) is connection:
            del self._links[host]
            connection.close()
            self._answered.discard(host)
            self._settle(host)

    def _line(self, host: str, line: bytes) -> None:
        connection = self._links[host]
        try:
            match wire.decode(line):
                case Nonce(nonce):
                    mac = proof.mac(self._token, nonce, self._hello.host)
                    connection.send(replace(self._hello, mac=mac, session=os.urandom(16).hex()))
                case Heartbeat():
                    self._answered.add(host)
                    self._settle(host)
                case End(verdict):
                    self._send(self._hub.ended_by_rival(self._loop.now(), host, verdict))
                    connection.send(Bye(informed=tuple(self._hub.gate.hellos)))
                    self._leave(host, connection)
                case Refuse(why):
                    self._was_refused(host, why)
                    self._leave(host, connection)
        except ValueError:  # whatever answers there is none of ours
            self._leave(host, connection)

    def _was_refused(self, host: str, why: str) -> None:
        """A hub of another job, or of this one with another list of hosts: that host may still come."""
        if host not in self._refused:
            self._refused.add(host)
            self._tell(f"warning: {host} runs a hub as well, which refuses this host: {shown(why.encode())}")
