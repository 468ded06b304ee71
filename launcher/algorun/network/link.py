"""A follower's link to the hub: one connection at a time, and another one when the hub falls silent.

What the hub's lines mean for the link is decided in control/handshake.py. first_contact.py makes the first connection,
spare_search.py the later ones.
"""

from __future__ import annotations

import socket

from algorun.common.event_loop import Loop
from algorun.control import wire
from algorun.control.handshake import Handshake, unheard
from algorun.control.messages import Heartbeat, Message, Nonce, Welcome

from .channel_user import ChannelUser
from .connection import Connection
from .first_contact import FirstContact
from .spare_search import Route, SpareSearch


class HubLink:
    """Tries to reach the hub until it is closed, and says hello when it gets through.

    When the hub falls silent, it tries a spare connection beside the one in use. Whichever brings the hub's next line
    stays.
    """

    def __init__(self, loop: Loop, route: Route, handshake: Handshake, user: ChannelUser) -> None:
        self._loop, self._handshake, self._user = loop, handshake, user
        self._connection: Connection | None = None  # the one in use
        self._resting: list[Connection] = []  # earlier ones: they end once the hub has taken the new one, not before
        self._spares = SpareSearch(loop, route, self._listen)
        self._first = FirstContact(loop, route, self, user.tell)

    @property
    def finished(self) -> bool:
        """True: nobody waits for this host."""
        return True

    @property
    def seen(self) -> str:
        """What answers where the hub should be, "" once the hub has greeted."""
        return "" if self._handshake.greeted else self._first.seen

    def send(self, message: Message) -> None:
        """Sends a message once, over this connection or a later one. Heartbeats look after the hub's silence."""
        now_due = self._handshake.say(message)
        if now_due is not None and self._connection is not None:
            self._connection.send(now_due)
        if isinstance(message, Heartbeat) and self._handshake.wants_another(self._loop.now()):
            self._spares.seek()

    def close(self, timeout_s: float = 0.5) -> None:
        """Last words, then no socket is left."""
        self._first.close()
        self._spares.close()
        if self._connection is not None:
            self._connection.flush(timeout_s)
        for each in self._resting:
            each.abandon()

    # -- connections -----------------------------------------------------------------------------------------------

    def reached(self, sock: socket.socket) -> Connection:
        """The first contact has made a connection."""
        self._connection = self._listen(sock)
        return self._connection

    def given_up(self) -> None:
        """The first contact has closed it."""
        self._connection = None

    def _listen(self, sock: socket.socket) -> Connection:
        connection = Connection(
            self._loop, sock, lambda line: self._line(connection, line), lambda reason: self._ended(connection, reason)
        )
        return connection

    def _change_over(self) -> None:
        """The hub has greeted over the spare connection, which is the one in use from now on."""
        if self._connection is not None:
            self._connection.rest()
            self._resting.append(self._connection)
        self._handshake.connection_gone()
        self._connection = self._spares.take()

    def _ended(self, connection: Connection, reason: str) -> None:
        """The other side has closed a connection, or the network has (no reason)."""
        if connection is self._spares.spare:
            return self._spares.drop()
        self._connection = None
        self._handshake.connection_gone()
        if not self._handshake.greeted:
            self._first.ended(connection, reason or "the connection broke")
        elif self._resting:  # the hub had not taken this one yet
            self._spares.seek()
        elif reason:
            self._user.hub_lost(f"hub lost: {reason}")
        return None

    # -- what comes ------------------------------------------------------------------------------------------------

    def _line(self, connection: Connection, line: bytes) -> None:
        self._first.spoken()
        try:
            message = wire.decode(line)
            self._handshake.check(message, first=connection is self._spares.spare)
            if connection is self._spares.spare:
                self._change_over()
            self._hear(connection, message)
        except ValueError as error:
            self._unusable(connection, line, error)

    def _unusable(self, connection: Connection, line: bytes, error: ValueError) -> None:
        if connection is self._spares.spare:
            connection.close()
            self._spares.drop()
        elif self._handshake.greeted:
            connection.close()
            self._connection = None
            self._user.hub_lost(f"hub lost: sent an unusable message: {error}")
        else:
            self._first.alien(connection, line)

    def _hear(self, connection: Connection, message: Message) -> None:
        answers = self._handshake.hear(self._loop.now(), message)
        if isinstance(message, Welcome):  # first of all: where an answer cannot be sent, the hub is lost
            for each in self._resting:
                each.abandon()
            self._resting.clear()
        for answer in answers:
            connection.send(answer)
        if isinstance(message, Nonce):
            self._first.greeted()
        elif unheard(message):
            self._spares.seek()
        elif not isinstance(message, Welcome):
            self._spares.stop()
        self._user.receive(message)
