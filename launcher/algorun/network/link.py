"""A follower's link to the hub: one connection at a time, and another one when the hub falls silent or the first is reset.

What the hub's lines mean for the link is decided in control/wire/introduction.py. first_contact.py makes the first connection,
spare_search.py the later ones.
"""

from __future__ import annotations

import functools
import socket

from algorun.common.event_loop import Loop, Timer
from algorun.control.host_loss import RESET_S
from algorun.control.wire import wire
from algorun.control.wire.introduction import ContactPhase, Introduction, greeting, unheard
from algorun.control.wire.messages import Heartbeat, Message, Welcome

from .channel_user import ChannelUser
from .connection import Connection, ConnectionEnd, How
from .first_contact import FirstContact
from .nonces import fresh
from .spare_search import Route, SpareSearch


class HubLink:
    """Tries to reach the hub until it is closed, and says hello when it gets through.

    When the hub falls silent, it tries a spare connection beside the one in use. Whichever brings the hub's next line
    stays. After a reset it comes back at once, or the hub is lost.
    """

    def __init__(self, loop: Loop, route: Route, introduction: Introduction, user: ChannelUser) -> None:
        self._loop, self._introduction, self._user = loop, introduction, user
        self._connection: Connection | None = None  # the one in use
        self._resting: list[Connection] = []  # earlier ones: they end once the hub has taken the new one, not before
        self._back_by: Timer | None = None  # the hub counts as lost unless this host is back by then
        self._spares = SpareSearch(loop, route, self._listen)
        self._first = FirstContact(loop, route, self, user.tell)

    @property
    def finished(self) -> bool:
        """True: nobody waits for this host."""
        return True

    @property
    def seen(self) -> str:
        """What answers where the hub should be, "" once the hub has proved itself."""
        return "" if self._introduction.proven else self._first.seen

    def send(self, message: Message) -> None:
        """Sends a message once, over this connection or a later one. Heartbeats look after the hub's silence."""
        now_due = self._introduction.say(message)
        if now_due is not None and self._connection is not None:
            self._connection.send(now_due)
        if isinstance(message, Heartbeat) and self._introduction.wants_another(self._loop.now()):
            self._spares.seek()

    def close(self, timeout_s: float = 0.5) -> None:
        """Last words, then no socket is left."""
        self._first.close()
        self._spares.close()
        self._is_back()
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
            self._loop, sock, lambda line: self._line(connection, line), lambda ending: self._ended(connection, ending)
        )
        return connection

    def _change_over(self) -> None:
        """A hub greets over the spare connection, which is the one in use from now on."""
        if self._connection is not None:
            self._connection.rest()
            self._resting.append(self._connection)
        self._introduction.connection_gone()
        self._connection = self._spares.take()

    def _ended(self, connection: Connection, ending: ConnectionEnd) -> None:
        """A connection has ended, and not by this side."""
        if connection is self._spares.spare:
            return self._spares.drop()
        self._connection = None
        phase = self._introduction.phase
        self._introduction.connection_gone()
        if phase is ContactPhase.REACHING or (phase is ContactPhase.PROVEN and ending.how is not How.CLOSED):
            self._first.ended(connection, ending.why or "the connection broke")
        elif phase is ContactPhase.RETURNING:  # the hub had not taken this one yet
            self._spares.seek_later()
        elif ending.how is How.CLOSED:
            self._user.hub_lost(f"hub lost: {ending.why}")
        elif ending.how is How.RESET:
            self._come_back(ending.why)
        return None

    def _come_back(self, why: str) -> None:
        """The hub may be alive, and waits as long for this host."""
        lost = f"hub lost: {why}, and no other connection within {RESET_S:g} s"
        self._back_by = self._loop.after(RESET_S, lambda: self._user.hub_lost(lost))
        self._spares.seek()

    def _is_back(self) -> None:
        if self._back_by is not None:
            self._back_by.cancel()
            self._back_by = None

    # -- what comes ------------------------------------------------------------------------------------------------

    def _line(self, connection: Connection, line: bytes) -> None:
        """A hub's first line greets, and proves nothing. Later ones are proven."""
        try:
            if connection.greeted:
                self._hear(connection, wire.decode(line))
            else:
                self._answer(connection, greeting(line))
        except ValueError as error:
            self._unusable(connection, line, error)

    def _answer(self, connection: Connection, nonce: str) -> None:
        if connection is self._spares.spare:
            self._change_over()
        hello, by = self._introduction.answer(nonce, fresh())
        connection.sealed(by, functools.partial(self._stranger, connection))
        connection.send(hello)
        if self._introduction.phase is ContactPhase.REACHING:
            self._first.greeted(connection)

    def _stranger(self, connection: Connection, line: bytes) -> None:
        """Whoever has greeted does not prove that it holds the job's token."""
        if not self._introduction.proven:
            return self._first.unproven(connection, line)
        connection.reset()
        self._connection = None
        return self._spares.seek_later()

    def _unusable(self, connection: Connection, line: bytes, error: ValueError) -> None:
        if connection is self._spares.spare:
            connection.close()
            self._spares.drop()
        elif self._introduction.proven:
            connection.close()
            self._connection = None
            self._user.hub_lost(f"hub lost: sent an unusable message: {error}")
        else:
            self._first.alien(connection, line)

    def _hear(self, connection: Connection, message: Message) -> None:
        answers = self._introduction.hear(self._loop.now(), message)
        self._first.proven()
        if isinstance(message, Welcome):  # first of all: where an answer cannot be sent, the hub is lost
            self._is_back()
            for each in self._resting:
                each.abandon()
            self._resting.clear()
        for answer in answers:
            connection.send(answer)
        if unheard(message):
            self._spares.seek()
        elif not isinstance(message, Welcome):
            self._spares.stop()
        self._user.receive(message)
