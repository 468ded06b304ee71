"""The hub's server: it moves the messages of hosts that have joined; what these mean is decided in control/hub/hub.py."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from algorun.common.event_loop import Loop, Timer
from algorun.control.hub import hub_messages
from algorun.control.hub.hub import Hub, Sends
from algorun.control.wire import seal, wire
from algorun.control.wire.messages import Hello, Message, Refuse, Welcome
from algorun.control.wire.session import Session
from algorun.job.limits import ControlSettings

from .channel_user import ChannelUser

if TYPE_CHECKING:  # a job of one host needs no socket
    from .connection import Connection, ConnectionEnd
    from .reception import Reception
    from .rival_search import Lookout


class JoinedHost:
    """A host that has joined: its session, and the connection over which it has joined now."""

    def __init__(self, session: Session, connection: Connection) -> None:
        self.session, self.connection = session, connection


class HubServer:
    """Feeds the hub from its own host (`send`) and from TCP, and sends what it says. `user` is on the leader's host."""

    def __init__(self, loop: Loop, hub: Hub, settings: ControlSettings, user: ChannelUser) -> None:
        self._loop, self._hub, self._settings, self._user = loop, hub, settings, user
        self._joined: dict[str, JoinedHost] = {}
        self._timer: Timer | None = None
        self._reception: Reception | None = None
        self._lookout: Lookout | None = None

    def listen(self, address: str) -> None:
        """Listens on the job's own address. Raises UserError where the port is taken."""
        from .reception import Reception

        self._reception = Reception(self._loop, self._hub.gate, self._settings, self)
        self._reception.listen(address, self._settings.port)

    def join(self, hello: Hello) -> None:
        """The leader's own host joins, without a socket."""
        self._send(self._hub.hello(self._loop.now(), hello))
        if self._reception is not None:
            from algorun.control.wire.introduction import Applicant

            from .rival_search import Lookout

            own = Applicant(hello, self._settings.token)
            self._lookout = Lookout(self._loop, self._hub, own, self._settings, self._send)

    @property
    def finished(self) -> bool:
        """True once every other host has left, or had its time to."""
        return self._hub.finished

    @property
    def seen(self) -> str:
        """The hub is here."""
        return ""

    def send(self, message: Message) -> None:
        """A message of the leader's own host."""
        self._loop.post(functools.partial(self._hear, self._hub.leader, message))

    def tell(self, text: str) -> None:
        """Prints a line in the leader's log."""
        self._user.tell(text)

    def close(self, timeout_s: float = 0.5) -> None:
        """Last words, then no socket is left."""
        if self._timer is not None:
            self._timer.cancel()
        if self._lookout is not None:
            self._lookout.close(timeout_s)
        if self._reception is not None:
            self._reception.close(timeout_s)
        for other in self._joined.values():
            other.connection.flush(timeout_s)

    def _send(self, sends: Sends) -> None:
        for host, message in sends:
            if host == self._hub.leader:
                self._loop.post(functools.partial(self._user.receive, message))
            elif host in self._joined:
                other = self._joined[host]
                other.connection.send(other.session.say(message))
        if self._hub.finished:
            if self._timer is not None:
                self._timer.cancel()
            self._loop.post(self._user.leave)
            return
        due = self._hub.deadline
        if self._timer is None or self._timer.deadline != due or self._timer.callback is None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.at(due, self._tick)

    def _tick(self) -> None:
        now = self._loop.now()
        self._send(self._hub.tick(now))
        line = self._hub.waits(now)
        if line:
            self.tell(line)

    def admit(self, connection: Connection, hello: Hello) -> bool:
        """A host joins, or comes back over another connection: each side then hears what it has missed.

        A host that comes back knows its session's id. Returns whether the hub has taken the host.
        """
        host, known, now = hello.host, self._joined.get(hello.host), self._loop.now()
        back = known is not None and seal.same(hello.session, known.session.id)
        session = known.session if known is not None and back else Session(hello.session)
        try:
            missed = session.missed(hello.heard)
        except ValueError as error:
            self._refused(connection, str(error), host)
            return False
        sends = self._hub.reconnected(now, host) if back else self._hub.hello(now, hello)
        answer = sends[0][1] if sends else None
        if isinstance(answer, Refuse):
            connection.send(answer)
            self._refused(connection, answer.why, host)
            return False
        if known is not None:
            known.connection.abandon()
        self._joined[host] = JoinedHost(session, connection)
        connection.listen(
            functools.partial(self._line, host, connection), functools.partial(self._ended, host, connection)
        )
        for message in (Welcome(session.heard), *missed):
            connection.send(message)
        self._send(sends)
        if self._hub.rivals and self._lookout is not None:
            self._lookout.look()
        return True

    def _refused(self, connection: Connection, why: str, host: str) -> None:
        if self._reception is not None:
            self._reception.warn(connection, why, host)
        connection.close()

    def _ended(self, host: str, connection: Connection, ending: ConnectionEnd) -> None:
        """A connection that the network has ended may be replaced by the host; one that the host has closed may not."""
        from .connection import How

        if self._joined[host].connection is not connection:
            return
        match ending.how:
            case How.CLOSED:
                self._lost(host, ending.why)
            case How.RESET:
                self._send(self._hub.reset(self._loop.now(), host, ending.why))

    def _lost(self, host: str, why: str) -> None:
        self._send(self._hub.lost(self._loop.now(), host, f"host lost: {why}"))

    def _line(self, host: str, connection: Connection, line: bytes) -> None:
        try:
            message = wire.decode(line)
            self._joined[host].session.hear(message)
            self._hear(host, message)
        except ValueError as error:
            connection.close()
            if self._joined[host].connection is connection:
                self._lost(host, f"sent an unusable message: {error}")

    def _hear(self, host: str, message: Message) -> None:
        self._send(hub_messages.receive(self._hub, self._loop.now(), host, message))
