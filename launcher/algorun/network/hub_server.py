"""The hub's TCP shell: it admits hosts and moves their lines; what these mean is decided in hub.py."""

from __future__ import annotations

import errno
import functools
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from algorun.control import proof, wire
from algorun.control.hub import Hub, Sends
from algorun.control.messages import Heartbeat, Hello, Message, Nonce, Refuse, Welcome
from algorun.control.refusals import Refusals, shown
from algorun.control.session import Session
from algorun.errors import UserError
from algorun.event_loop import READ, Loop, Timer

from .addresses import Address, look_up
from .connection import Connection
from .rival_search import Lookout

HELLO_TIMEOUT_S = 5.0  # a peer that has not said who it is by then is closed
NAME_RETRY_S = 0.5  # until the next look-up of a name that does not resolve yet
FULL_RETRY_S = 0.2  # until the next look at new peers when there are too many
WRONG_PROOF = "the job's token differs (ALGORUN_TOKEN, or the training job's ARN)"
STRANGERS = 256  # peers that have not said hello, at most; further ones wait in the kernel's backlog


@dataclass(slots=True)
class Peer:
    """A host that has joined: the connection over which it does so now, and from where."""

    session: Session
    connection: Connection
    address: str


class HubShell:
    """Feeds the hub from its own host (`send`) and from TCP, and sends what it says."""

    def __init__(self, loop: Loop, hub: Hub, token: str, secret: bool, addresses: Mapping[str, str]) -> None:
        self._loop, self._hub, self._token, self._secret, self._addresses = loop, hub, token, secret, addresses
        self._local: Callable[[Message], None] = lambda message: None
        self._listener: socket.socket | None = None
        self._port = 0
        self._peers: dict[str, Peer] = {}
        self._strangers: dict[Connection, Timer] = {}
        self._timer: Timer | None = None
        self._lookout: Lookout | None = None
        self._refusals = Refusals()
        self._refusals_timer: Timer | None = None
        self.on_finished: Callable[[], None] = lambda: None
        self.tell: Callable[[str], None] = lambda text: None

    def listen(self, address: str, port: int) -> None:
        """Listens on the job's own address. Raises UserError where the port is taken."""
        try:
            (family, where), *_ = look_up(address, port)
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
        except OSError as error:
            what = f"port {port} on {address}: {error.strerror}"
            if error.errno == errno.EADDRINUSE:
                from algorun.machine.port_owner import owner

                holder = owner(str(where[0]), port)
                what += f" by {holder}" if holder else ""
            raise UserError(
                "ALGORUN_CONTROL_PORT",
                what,
                allowed="a free port, the same on all hosts",
                fix="set ALGORUN_CONTROL_PORT on all hosts",
            ) from None
        self._port = port
        listener.listen(4096)
        listener.setblocking(False)
        self._listener = listener
        self._loop.watch(listener, READ, self._accept)

    def join(self, hello: Hello, receive: Callable[[Message], None]) -> None:
        """The leader's own host joins, without a socket."""
        self._local = receive
        self._send(self._hub.hello(self._loop.now(), hello))
        if self._listener is not None:
            where = (self._addresses, self._port)
            self._lookout = Lookout(self._loop, self._hub, hello, self._token, where, self._send, self.tell)

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
        if self._refusals_timer:
            self._refusals_timer.cancel()
        self._warn_of(self._refusals.rest(self._loop.now(), last=True))
        if self._listener is not None:
            self._loop.forget(self._listener)
            self._listener.close()
            self._listener = None
        for connection in (*(peer.connection for peer in self._peers.values()), *self._strangers):
            connection.flush(timeout_s)

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

    def _accept(self, _: int) -> None:
        assert self._listener is not None
        try:
            while len(self._strangers) < STRANGERS:
                sock, _address = self._listener.accept()
                self._greet(sock)
        except BlockingIOError:
            return
        except OSError:  # out of descriptors: strangers leave within their time
            pass
        self._loop.forget(self._listener)
        self._loop.after(FULL_RETRY_S, self._accept_again)

    def _accept_again(self) -> None:
        if self._listener is not None:
            self._loop.watch(self._listener, READ, self._accept)

    def _greet(self, sock: socket.socket) -> None:
        nonce = os.urandom(16).hex()
        connection = Connection(
            self._loop, sock, lambda line: self._introduced(connection, nonce, line),
            lambda reason: self._no_hello(connection, f", {reason or 'the connection broke'}"),
        )  # fmt: skip
        too_late = f" within {HELLO_TIMEOUT_S:g} s"
        self._strangers[connection] = self._loop.after(HELLO_TIMEOUT_S, lambda: self._no_hello(connection, too_late))
        connection.send(Nonce(nonce))

    def _no_hello(self, connection: Connection, how: str) -> None:
        """A host that tried another connection may have heard the hub over its first one meanwhile."""
        known = not connection.unread and any(connection.peer == peer.address for peer in self._peers.values())
        self._drop(connection, "" if known else f"no hello{how}")

    def _drop(self, connection: Connection, why: str, host: str = "") -> None:
        """Closes a stranger and says why, if there is more to say. `host` is who it said it is, if it is one of the job's."""
        timer = self._strangers.pop(connection, None)
        if timer is not None:
            timer.cancel()
            if why:
                self._note_refusal(connection, why, host)
        connection.close()

    def _refuse(self, connection: Connection, why: str, host: str = "") -> None:
        """The same for one that can be told why."""
        connection.send(Refuse(why))
        self._drop(connection, why, host)

    def _note_refusal(self, connection: Connection, why: str, host: str) -> None:
        peer = f"{connection.peer} as {host}" if host else connection.peer
        self._warn_of(self._refusals.refused(self._loop.now(), peer, why))

    def _warn_of(self, line: str) -> None:
        """Says the line, if there is one, and comes back for those that were left out."""
        if line:
            self.tell(f"warning: {line}")
        due = self._refusals.due
        if due is not None and (self._refusals_timer is None or self._refusals_timer.callback is None):
            self._refusals_timer = self._loop.at(due, lambda: self._warn_of(self._refusals.rest(self._loop.now())))

    def _introduced(self, connection: Connection, nonce: str, line: bytes) -> None:
        """A stranger's first line must be a hello with the right proof; anything else closes it."""
        if connection not in self._strangers:
            return
        try:
            hello = wire.decode_hello(line)
            proven = proof.same(hello.mac, proof.mac(self._token, nonce, hello.host))
        except ValueError:  # text that cannot be encoded is one too
            return self._drop(connection, f"no hello, it sent {shown(line)}")
        host = hello.host
        if proven and not self._hub.expects(host):
            connection.send(Refuse(f"{host} is not one of the job's hosts"))
            return self._drop(connection, f"{shown(host.encode())} is not one of the job's hosts")
        if not proven:
            self._hub.unproven(host)
            return self._refuse(connection, WRONG_PROOF, host if self._hub.expects(host) else "")
        admit = functools.partial(self._admit, connection, hello)
        if self._secret:  # a token of the user's own proves more than an address does
            return admit()
        self._strangers[connection].cancel()
        connection.listen(  # it waits for an answer
            lambda line: self._drop(connection, f"it sent {shown(line)} before it was welcome", host),
            lambda reason: self._drop(connection, reason or "the connection broke", host),
        )
        peer = self._peers.get(host)
        if peer is None:
            return self._look_up(connection, hello, admit)
        if connection.peer == peer.address:
            return admit()
        return self._drop(connection, f"{host} is connected from {peer.address}", host)

    def _look_up(self, connection: Connection, hello: Hello, admit: Callable[[], None]) -> None:
        if connection in self._strangers:
            self._loop.in_thread(
                functools.partial(look_up, self._addresses.get(hello.host, hello.host), 0),
                lambda found: self._check(connection, hello, admit, found),
            )

    def _check(
        self, connection: Connection, hello: Hello, admit: Callable[[], None], found: list[Address] | Exception
    ) -> None:
        """The address must be one of the host that the peer says it is. A name that is not known yet may come."""
        peer = connection.peer
        if isinstance(found, Exception):
            connection.send(Heartbeat())
            self._loop.after(NAME_RETRY_S, lambda: self._look_up(connection, hello, admit))
            return None
        known = [str(address[0]) for _, address in found]
        if peer in known:
            return admit()
        why = f"{hello.host} resolves to {', '.join(known)}, but the connection comes from {peer}"
        return self._refuse(connection, why, hello.host)

    def _admit(self, connection: Connection, hello: Hello) -> None:
        """A host joins, or one that knows its session's id comes back: each side hears what it has missed."""
        timer = self._strangers.pop(connection, None)
        if timer is None:
            return
        timer.cancel()
        host, peer = hello.host, self._peers.get(hello.host)
        back = peer is not None and proof.same(hello.session, peer.session.id)
        session = peer.session if peer is not None and back else Session(hello.session)
        try:
            missed = session.missed(hello.heard)
        except ValueError as error:
            self._note_refusal(connection, str(error), host)
            return connection.close()
        sends = self._hub.back(self._loop.now(), host) if back else self._hub.hello(self._loop.now(), hello)
        answer = sends[0][1] if sends else None
        if isinstance(answer, Refuse):
            self._note_refusal(connection, answer.why, host)
            connection.send(answer)
            connection.close()
            return
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

    def _ended(self, host: str, connection: Connection, reason: str) -> None:
        """What the network has ended, the host may replace."""
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
        self._send(self._hub.receive(self._loop.now(), host, message))
