"""A host's link to the hub: it tries until it gets through, says hello, and connects anew when the hub falls silent."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace

from algorun.control import proof, wire
from algorun.control.messages import Heartbeat, Hello, Message, Nonce, Welcome
from algorun.control.refusals import shown
from algorun.control.session import Session
from algorun.control.waiting import Reach
from algorun.event_loop import Loop, Timer

from .addresses import Address, look_up
from .connection import Connection

RETRY_S = (0.02, 0.05, 0.1, 0.25)  # pauses between attempts to reach the hub; the last one repeats
CONNECT_TIMEOUT_S = 3.0
SILENT_S = 3.0  # a hub greets at once; a program that says nothing for so long is another one, or held up
PATIENT_S = 15.0  # of silence, until another connection is tried
# How often another connection is tried once the hub has fallen silent. The kernel doubles its pauses: it would notice
# the end of a gap of 8 s up to 7 s late.
SPARE_EVERY_S = 0.5
SPARE_ANSWER_S = 3.0  # for the hub's first line over it: the kernel of a hub that stands still connects all the same


class HubLink:
    """A follower's connection to the hub. It tries until it is told to stop, and says hello when it gets through.

    When the hub has been silent for `silence_s`, it tries a spare connection beside the first one. Whichever brings the
    hub's next line stays. `lost` hears only of a hub that has closed the connection; silence is for others to judge.
    """

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
        self._silence: Timer | None = None  # of what was reached in the hub's place
        self._loop, self._where, self._source, self._token, self._hello = loop, where, source, token, hello
        self._receive, self._lost = receive, lost
        self._session = Session(os.urandom(16).hex())
        self._connection: Connection | None = None
        self._greeted = False  # this host has said hello, over this connection or an earlier one
        self._welcome = False  # the hub has answered to it over this one
        self._joined = False  # over any one; before that it may still look up this host's name
        self._address: list[Address] = []  # where the hub was reached
        self._heard_at = loop.now()
        self._seeking = False
        self._spare: Connection | None = None
        self._resting: list[Connection] = []  # earlier ones: they end once the hub has taken the new one, not before
        self._tries = 0
        self._timer: Timer | None = None
        self._closed = False
        self._waiting = loop.at(self._reach.due_at, self._wait)
        self._try()

    def send(self, message: Message) -> None:
        line = self._session.say(message)
        if self._connection is not None and self._welcome:
            self._connection.send(line)
        silent = self._joined and self._loop.now() - self._heard_at >= self._silence_s
        if silent and isinstance(message, Heartbeat):
            self._seek()

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
        for timer in (self._waiting, self._silence):
            if timer:
                timer.cancel()
        self._stop_seeking()
        if self._connection is not None:
            self._connection.flush(timeout_s)
        for each in self._resting:
            each.abandon()

    # -- connecting ------------------------------------------------------------------------------------------------

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
        self._loop.in_thread(lambda: self._connect(look_up(*self._where), CONNECT_TIMEOUT_S), self._connected)

    def _connect(self, where: list[Address], timeout_s: float) -> tuple[socket.socket, Address]:
        """Connects, in a thread: it may block, as the look-up may."""
        error: OSError = OSError("no address")
        for family, address in where:
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.settimeout(timeout_s)
                if self._source:
                    sock.bind((self._source, 0))
                sock.connect(address)
            except OSError as failed:
                sock.close()
                error = failed
            else:
                return sock, (family, address)
        raise error

    def _connected(self, result: tuple[socket.socket, Address] | Exception) -> None:
        if isinstance(result, Exception):
            self._reach.failed(getattr(result, "strerror", None) or str(result))
            return self._again()
        sock, address = result
        if self._closed:
            return sock.close()
        self._address = [address]
        connection = self._connection = self._listen(sock)
        self._silence = self._loop.after(SILENT_S, lambda: self._silent(connection))
        return None

    def _listen(self, sock: socket.socket) -> Connection:
        connection = Connection(
            self._loop, sock, lambda line: self._line(connection, line), lambda reason: self._ended(connection, reason)
        )
        return connection

    # -- connecting anew -------------------------------------------------------------------------------------------

    def _seek(self) -> None:
        """Tries spare connections until the hub speaks."""
        if not self._seeking and not self._closed:
            self._seeking = True
            self._seek_once()

    def _seek_once(self) -> None:
        next_at = self._loop.now() + SPARE_EVERY_S
        self._loop.in_thread(
            lambda: self._connect(self._address, SPARE_EVERY_S), lambda result: self._found(next_at, result)
        )

    def _found(self, next_at: float, result: tuple[socket.socket, Address] | Exception) -> None:
        wanted = self._seeking and not self._closed and self._spare is None
        if isinstance(result, Exception):
            if wanted:
                self._timer = self._loop.at(next_at, self._seek_once)
        elif wanted:
            self._spare = self._listen(result[0])
            self._timer = self._loop.after(SPARE_ANSWER_S, self._seek_another)
        else:
            result[0].close()

    def _seek_another(self) -> None:
        self._stop_seeking()
        self._seek()

    def _stop_seeking(self) -> None:
        self._seeking = False
        if self._timer is not None:
            self._timer.cancel()
        if self._spare is not None:
            self._spare.abandon()
            self._spare = None

    def _change_over(self) -> None:
        """The spare connection is the one that counts from now on."""
        if self._connection is not None:
            self._connection.rest()
            self._resting.append(self._connection)
        self._connection, self._spare, self._welcome = self._spare, None, False
        self._stop_seeking()

    # -- what comes ------------------------------------------------------------------------------------------------

    def _ended(self, connection: Connection, reason: str) -> None:
        """The other side has closed it, or the network has (no reason)."""
        if connection is self._spare:
            self._spare = None  # the timer brings the next
            return
        self._connection, self._welcome = None, False
        if not self._greeted:
            self._not_greeted(connection, reason or "the connection broke")
            self._again()
        elif self._resting:  # the hub had not taken this one yet
            self._seek()
        elif reason:
            self._lost(f"hub lost: {reason}")

    def _not_greeted(self, connection: Connection, reason: str) -> None:
        if self._silence:
            self._silence.cancel()
        if connection.unread:
            self._say(self._reach.alien(connection.peer, shown(connection.unread)))
        else:
            self._reach.failed(reason, connection.peer)

    def _line(self, connection: Connection, line: bytes) -> None:
        if self._silence:
            self._silence.cancel()
        try:
            message = wire.decode(line)
            if (not self._greeted or connection is self._spare) and not isinstance(message, Nonce):
                raise ValueError("no nonce")
            if connection is self._spare:
                self._change_over()
            self._hear(connection, message)
        except ValueError as error:
            if connection is self._spare:
                connection.close()
                self._spare = None
            elif self._greeted:
                connection.close()
                self._connection = None
                self._lost(f"hub lost: sent an unusable message: {error}")
            else:
                self._say(self._reach.alien(connection.peer, shown(line)))
                self._leave(connection)

    def _hear(self, connection: Connection, message: Message) -> None:
        self._session.hear(message)
        self._heard_at = self._loop.now()
        match message:
            case Nonce(nonce):
                self._greeted = True
                self._waiting.cancel()
                mac = proof.mac(self._token, nonce, self._hello.host)
                connection.send(replace(self._hello, mac=mac, session=self._session.id, heard=self._session.heard))
            case Welcome(heard):
                missed = self._session.missed(heard)
                for each in self._resting:
                    each.abandon()
                self._resting.clear()
                self._welcome = self._joined = True
                for line in missed:
                    connection.send(line)
            case Heartbeat(unheard=True):
                self._seek()
            case _:
                self._stop_seeking()
        self._receive(message)
