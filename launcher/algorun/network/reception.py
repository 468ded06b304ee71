"""Meets whoever connects to the hub: only a host of this job, with its proof and from its own address, gets in.

Strangers, who have not said hello yet, have few places. When all are taken, the newcomer gets the place of the one that has
been silent for longest, from the address with most of them; the addresses of the job's own hosts come last. So neither many
connections nor many addresses keep a host out: it says hello within milliseconds.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from algorun.common.errors import UserError
from algorun.common.event_loop import READ, Loop, Timer
from algorun.control.hub.gate import Gate
from algorun.control.hub.refusals import Refusals, shown
from algorun.control.wire.introduction import introduced
from algorun.control.wire.messages import Heartbeat, Hello, Nonce, Refuse
from algorun.job.limits import ControlSettings

from .addresses import Address, look_up
from .connection import Connection
from .nonces import fresh

HELLO_TIMEOUT_S = 5.0  # a peer that has not said who it is by then is closed
NAME_RETRY_S = 0.5  # until the next look-up of a name that does not resolve yet
NO_SOCKET_S = 0.2  # until the next look at new peers when this process has no descriptor left
WRONG_PROOF = "the job's token differs (ALGORUN_TOKEN, or the training job's ARN)"
STRANGERS = 256  # peers that have not said hello, at most
AT_ONCE = 16  # peers that are met before those that are here already are heard


class Admitting(Protocol):
    """What the reception needs of the hub's server."""

    def admit(self, connection: Connection, hello: Hello) -> bool:
        """A host of this job may join over this connection. Returns whether the hub has taken it."""

    def tell(self, text: str) -> None:
        """Prints a line in this host's log."""


class RefusalLog:
    """Warns about refused peers: at once about the first, in one line about a flood of others (control/hub/refusals.py)."""

    def __init__(self, loop: Loop, tell: Callable[[str], None]) -> None:
        self._loop, self._tell = loop, tell
        self._refusals = Refusals()
        self._timer: Timer | None = None

    def add(self, connection: Connection, why: str, host: str) -> None:
        """`host` is the host of this job that the peer claims to be, "" for none."""
        peer = f"{connection.peer} as {host}" if host else connection.peer
        self._warn(self._refusals.refused(self._loop.now(), peer, why))

    def close(self) -> None:
        """Prints the warning that is left, if there is one."""
        if self._timer:
            self._timer.cancel()
        self._warn(self._refusals.rest(self._loop.now(), last=True))

    def _warn(self, line: str) -> None:
        """Prints a line, if there is one, and later one about the peers that it leaves out."""
        if line:
            self._tell(f"warning: {line}")
        due = self._refusals.due
        if due is not None and (self._timer is None or self._timer.callback is None):
            self._timer = self._loop.at(due, lambda: self._warn(self._refusals.rest(self._loop.now())))


class Reception:
    """Asks each peer who it is, and hands those that may join to the server.

    A host proves that it holds the job's token. Where others may know the token (`settings.own_token` is false), its
    address must be the host's as well.
    """

    def __init__(self, loop: Loop, gate: Gate, settings: ControlSettings, server: Admitting) -> None:
        self._loop, self._gate, self._settings, self._server = loop, gate, settings, server
        self._log = RefusalLog(loop, server.tell)
        self._listener: socket.socket | None = None
        self._strangers: dict[Connection, Timer] = {}  # the oldest first
        self._joined: dict[str, str] = {}  # hosts, and the address that each has joined from
        self._familiar = set(settings.addresses.values())  # addresses of the job's hosts, as far as they are known
        self._crowded = False  # once all places were taken

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
        listener.listen(4096)
        listener.setblocking(False)
        self._listener = listener
        self._loop.watch(listener, READ, self._accept)

    def warn(self, connection: Connection, why: str, host: str) -> None:
        """The hub has refused this host."""
        self._log.add(connection, why, host)

    def close(self, timeout_s: float) -> None:
        """Closes the port, and sends the peers that wait what is still unsent."""
        self._log.close()
        if self._listener is not None:
            self._loop.forget(self._listener)
            self._listener.close()
            self._listener = None
        for connection in list(self._strangers):
            connection.flush(timeout_s)

    def _accept(self, _: int) -> None:
        assert self._listener is not None
        try:
            for _ in range(AT_ONCE):
                sock, _address = self._listener.accept()
                self._greet(sock)
                if len(self._strangers) > STRANGERS:
                    self._make_room()
        except BlockingIOError:
            return
        except OSError:  # out of descriptors: strangers leave within their time
            self._loop.forget(self._listener)
            self._loop.after(NO_SOCKET_S, self._accept_again)

    def _accept_again(self) -> None:
        if self._listener is not None:
            self._loop.watch(self._listener, READ, self._accept)

    def _make_room(self) -> None:
        """Drops the stranger that has been silent for longest: see the head of this file."""
        if not self._crowded:
            self._crowded = True
            self._loop.in_thread(functools.partial(self._look_up_all, self._gate.missing), self._found_all)
        foreign = [each for each in self._strangers if each.peer not in self._familiar]
        those = foreign or list(self._strangers)
        counts = Counter(each.peer for each in those)
        most = max(counts.values())
        oldest = next(each for each in those if counts[each.peer] == most)
        self._drop(oldest, f"no hello, and {STRANGERS} others wait to be heard")

    def _look_up_all(self, hosts: Sequence[str]) -> set[str]:
        """The addresses of these hosts, as far as their names resolve. Blocks."""
        found = set()
        for host in hosts:
            with contextlib.suppress(OSError):
                found |= {str(address[0]) for _, address in look_up(self._settings.addresses.get(host, host), 0)}
        return found

    def _found_all(self, found: set[str] | Exception) -> None:
        if not isinstance(found, Exception):
            self._familiar |= found

    def _greet(self, sock: socket.socket) -> None:
        nonce = fresh()
        connection = Connection(
            self._loop, sock, lambda line: self._introduced(connection, nonce, line),
            lambda ending: self._no_hello(connection, f", {ending.why or 'the connection broke'}"),
        )  # fmt: skip
        too_late = f" within {HELLO_TIMEOUT_S:g} s"
        self._strangers[connection] = self._loop.after(HELLO_TIMEOUT_S, lambda: self._no_hello(connection, too_late))
        connection.send(Nonce(nonce))

    def _no_hello(self, connection: Connection, how: str) -> None:
        """Drops a peer that has not said who it is.

        No warning where a host that has joined had tried a spare connection, and heard the hub over its first one.
        """
        known = not connection.unread and connection.peer in self._joined.values()
        self._drop(connection, "" if known else f"no hello{how}")

    def _drop(self, connection: Connection, why: str, host: str = "") -> None:
        """Closes a stranger. Where there is a reason, warns about it."""
        timer = self._strangers.pop(connection, None)
        if timer is not None:
            timer.cancel()
            if why:
                self._log.add(connection, why, host)
        connection.close()

    def _refuse(self, connection: Connection, why: str, host: str = "") -> None:
        """Tells a stranger why it cannot join, and closes it."""
        connection.send(Refuse(why))
        self._drop(connection, why, host)

    def _introduced(self, connection: Connection, nonce: str, line: bytes) -> None:
        """A stranger's first line must be a hello that proves the token; anything else closes it."""
        if connection not in self._strangers:
            return
        try:
            hello, seal = introduced(self._settings.token, nonce, line)
        except ValueError:  # one of them: text that cannot be encoded
            return self._drop(connection, f"no hello, it sent {shown(line)}")
        host, expected = hello.host, self._gate.expects(hello.host)
        if seal is None:
            self._gate.unproven(host)
            return self._refuse(connection, WRONG_PROOF, host if expected else "")
        connection.sealed(seal)
        if not expected:
            connection.send(Refuse(f"{host} is not one of the job's hosts"))
            return self._drop(connection, f"{shown(host.encode())} is not one of the job's hosts")
        if self._settings.own_token:
            return self._admit(connection, hello)
        self._strangers[connection].cancel()
        connection.listen(  # from here on it only waits for the answer
            lambda line: self._drop(connection, f"it sent {shown(line)} before it was welcome", host),
            lambda ending: self._drop(connection, ending.why or "the connection broke", host),
        )
        connection.send(Heartbeat())  # proves the hub: a look-up may take its time
        address = self._joined.get(host)
        if address is None:
            return self._look_up(connection, hello)
        if connection.peer == address:
            return self._admit(connection, hello)
        return self._drop(connection, f"{host} is connected from {address}", host)

    def _look_up(self, connection: Connection, hello: Hello) -> None:
        if connection in self._strangers:
            name = self._settings.addresses.get(hello.host, hello.host)
            self._loop.in_thread(
                functools.partial(look_up, name, 0), lambda found: self._check(connection, hello, found)
            )

    def _check(self, connection: Connection, hello: Hello, found: list[Address] | Exception) -> None:
        """The peer's address must be one of its host's. A name that does not resolve yet is looked up again."""
        if isinstance(found, Exception):
            connection.send(Heartbeat())
            self._loop.after(NAME_RETRY_S, lambda: self._look_up(connection, hello))
            return None
        known = [str(address[0]) for _, address in found]
        if connection.peer in known:
            return self._admit(connection, hello)
        why = f"{hello.host} resolves to {', '.join(known)}, but the connection comes from {connection.peer}"
        return self._refuse(connection, why, hello.host)

    def _admit(self, connection: Connection, hello: Hello) -> None:
        timer = self._strangers.pop(connection, None)
        if timer is not None:
            timer.cancel()
            if self._server.admit(connection, hello):
                self._joined[hello.host] = connection.peer
