"""The hub's TCP server: it moves the lines of hosts that have joined; what these mean is decided in control/hub.py."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from algorun.control import hub_messages, proof, wire
from algorun.control.hub import Hub, Sends
from algorun.control.messages import Hello, Message, Refuse, Welcome
from algorun.control.session import Session
from algorun.event_loop import Loop, Timer

from .connection import Connection
from .reception import Credentials, Peer, Reception, RefusalLog
from .rival_search import Lookout


class HubShell:
    """Feeds the hub from its own host (`send`) and from TCP, and sends what it says."""

    def __init__(self, loop: Loop, hub: Hub, token: str, secret: bool, addresses: Mapping[str, str]) -> None:
        self._loop, self._hub = loop, hub
        self._local: Callable[[Message], None] = lambda message: None
        self._peers: dict[str, Peer] = {}
        self._timer: Timer | None = None
        self._lookout: Lookout | None = None
        self._credentials = Credentials(token, secret, addresses)
        self._log = RefusalLog(loop, lambda text: self.tell(text))
        self._reception = Reception(loop, hub.gate, self._credentials, self._peers, self._admit, self._log)
        self._port = 0
        self.on_finished: Callable[[], None] = lambda: None
        self.tell: Callable[[str], None] = lambda text: None

    def listen(self, address: str, port: int) -> None:
        """Listens on the job's own address. Raises UserError where the port is taken."""
        self._reception.listen(address, port)
        self._port = port

    def join(self, hello: Hello, receive: Callable[[Message], None]) -> None:
        """The leader's own host joins, without a socket."""
        self._local = receive
        self._send(self._hub.hello(self._loop.now(), hello))
        if self._port:
            where, token = (self._credentials.addresses, self._port), self._credentials.token
            self._lookout = Lookout(self._loop, self._hub, hello, token, where, self._send, self.tell)

    @property
    def finished(self) -> bool:
        return self._hub.finished

    @property
    def seen(self) -> str:
        """The hub is here."""
        return ""

    def send(self, message: Message) -> None:
        """A message of the leader's own host."""
        self._loop.post(functools.partial(self._hear, self._hub.leader, message))

    def close(self, timeout_s: float = 0.5) -> None:
        """Last words, then no socket is left."""
        if self._timer:
            self._timer.cancel()
        if self._lookout is not None:
            self._lookout.close(timeout_s)
        self._reception.close(timeout_s)
        for peer in self._peers.values():
            peer.connection.flush(timeout_s)

    def _send(self, sends: Sends) -> None:
        for host, message in sends:
            if host == self._hub.leader:
                self._loop.post(functools.partial(self._local, message))
            elif host in self._peers:
                peer = self._peers[host]
                peer.connection.send(peer.session.say(message))
        if self._hub.finished:
            if self._timer:
                self._timer.cancel()
            self._loop.post(self.on_finished)
            return
        due = self._hub.deadline
        if self._timer is None or self._timer.deadline != due or self._timer.callback is None:
            if self._timer:
                self._timer.cancel()
            self._timer = self._loop.at(due, self._tick)

    def _tick(self) -> None:
        now = self._loop.now()
        self._send(self._hub.tick(now))
        line = self._hub.waits(now)
        if line:
            self.tell(line)

    def _admit(self, connection: Connection, hello: Hello) -> None:
        """A host joins, or one that knows its session's id comes back: each side hears what it has missed."""
        host, peer, now = hello.host, self._peers.get(hello.host), self._loop.now()
        back = peer is not None and proof.same(hello.session, peer.session.id)
        session = peer.session if peer is not None and back else Session(hello.session)
        try:
            missed = session.missed(hello.heard)
        except ValueError as error:
            self._log.add(connection, str(error), host)
            return connection.close()
        sends = self._hub.reconnected(now, host) if back else self._hub.hello(now, hello)
        answer = sends[0][1] if sends else None
        if isinstance(answer, Refuse):
            self._log.add(connection, answer.why, host)
            connection.send(answer)
            return connection.close()
        if peer is not None:
            peer.connection.abandon()
        self._peers[host] = Peer(session, connection, connection.peer)
        connection.listen(
            functools.partial(self._line, host, connection), functools.partial(self._ended, host, connection)
        )
        for message in (Welcome(session.heard), *missed):
            connection.send(message)
        self._send(sends)
        if self._hub.rivals and self._lookout is not None:
            self._lookout.look()
        return None

    def _ended(self, host: str, connection: Connection, reason: str) -> None:
        """A connection that the network has ended may be replaced by the host; one that the host has closed may not."""
        if reason and self._peers[host].connection is connection:
            self._send(self._hub.lost(self._loop.now(), host, f"host lost: {reason}"))

    def _line(self, host: str, connection: Connection, line: bytes) -> None:
        try:
            message = wire.decode(line)
            self._peers[host].session.hear(message)
            self._hear(host, message)
        except ValueError as error:
            connection.close()
            self._ended(host, connection, f"sent an unusable message: {error}")

    def _hear(self, host: str, message: Message) -> None:
        self._send(hub_messages.receive(self._hub, self._loop.now(), host, message))
