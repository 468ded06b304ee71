"""The TCP shell of the hub and of a host's link to it. It moves lines; what they mean is decided elsewhere."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ExitCode, UserError
from ..loop import READ, WRITE, Loop, Timer
from . import messages
from .hub import Hub, Sends
from .messages import Hello, Message

HELLO_TIMEOUT_S = 5.0  # a peer that has not said who it is by then is closed
STRANGERS = 2048  # peers that have not said hello, at most; further ones wait in the kernel's backlog
RETRY_S = (0.02, 0.05, 0.1, 0.25)  # pauses between attempts to reach the hub; the last one repeats
UNSENT = 4 * 1024 * 1024  # bytes to a peer that does not read, before it counts as lost

Address = tuple[int, tuple[Any, ...]]  # family and socket address


def look_up(host: str, port: int) -> list[Address]:
    """All stream addresses of a name. Raises OSError where it does not resolve. Blocks."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


class Connection:
    """Lines over one non-blocking socket. `on_line(bytes)`; `on_end(reason)` exactly once, unless closed by us."""

    def __init__(
        self, loop: Loop, sock: socket.socket, on_line: Callable[[bytes], None], on_end: Callable[[str], None]
    ) -> None:
        self._loop, self._sock = loop, sock
        self._on_line, self._on_end = on_line, on_end
        self._received, self._unsent = b"", b""
        self._open, self._closing = True, False
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.watch(sock, READ, self._ready)

    def user_timeout(self, seconds: float) -> None:
        """Data that stays unacknowledged for so long ends the connection (RFC 5482)."""
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if option is not None:
            self._sock.setsockopt(socket.IPPROTO_TCP, option, int(seconds * 1000))

    @property
    def peer(self) -> str:
        try:
            return str(self._sock.getpeername()[0])
        except OSError:
            return ""

    def send(self, message: Message) -> None:
        """Queues a message; a connection that has ended swallows it."""
        if self._open:
            self._unsent += messages.encode(message)
            self._write()

    def close(self) -> None:
        """Ends the connection once everything is written."""
        self._closing = True
        if not self._unsent:
            self._shut()

    def flush(self, timeout_s: float) -> None:
        """Writes what is left, blocking for at most `timeout_s`: last words before an exit."""
        if self._open and self._unsent:
            with contextlib.suppress(OSError):
                self._sock.settimeout(timeout_s)
                self._sock.sendall(self._unsent)
        self._shut()

    def _shut(self) -> None:
        if self._open:
            self._open = False
            self._loop.forget(self._sock)
            self._sock.close()

    def _lost(self, reason: str) -> None:
        if self._open:
            self._shut()
            self._on_end(reason)

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._write()
        if events & READ and self._open:
            self._read()

    def _read(self) -> None:
        try:
            data = self._sock.recv(65536)
        except BlockingIOError:
            return
        except OSError as error:
            return self._lost(error.strerror or "broken")
        if not data:
            return self._lost("connection closed")
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            if self._open:
                self._on_line(line)
        if len(self._received) > messages.LONGEST:
            self._lost("line too long")
        return None

    def _write(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except BlockingIOError:
            if len(self._unsent) > UNSENT:
                return self._lost("does not read")
        except OSError as error:
            return self._lost(error.strerror or "broken")
        if self._closing and not self._unsent:
            return self._shut()
        if self._open:
            self._loop.watch(self._sock, READ | WRITE if self._unsent else READ, self._ready)
        return None


class HubShell:
    """Feeds the hub from its own host (`local`) and from TCP, and sends what it says."""

    def __init__(self, loop: Loop, hub: Hub, token: str, secret: bool, addresses: Mapping[str, str]) -> None:
        self._loop, self._hub, self._token, self._secret, self._addresses = loop, hub, token, secret, addresses
        self._local: Callable[[Message], None] = lambda message: None
        self._listener: socket.socket | None = None
        self._by_host: dict[str, Connection] = {}
        self._strangers: dict[Connection, Timer] = {}
        self._timer: Timer | None = None
        self.on_finished: Callable[[], None] = lambda: None

    def listen(self, address: str, port: int) -> None:
        """Listens on the job's own address. Raises UserError where the port is taken."""
        try:
            (family, where), *_ = look_up(address, port)
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
        except OSError as error:
            raise UserError(
                "ALGORUN_CONTROL_PORT",
                f"port {port} on {address}: {error.strerror}",
                allowed="a free port, the same on all hosts",
                fix="set ALGORUN_CONTROL_PORT on all hosts",
            ) from None
        listener.listen(4096)
        listener.setblocking(False)
        self._listener = listener
        self._loop.watch(listener, READ, self._accept)

    def join(self, hello: Hello, receive: Callable[[Message], None]) -> None:
        """The leader's own host joins, without a socket."""
        self._local = receive
        self._send(self._hub.hello(self._loop.now(), hello))

    @property
    def finished(self) -> bool:
        return self._hub.finished

    def local(self, message: Message) -> None:
        """A message of the leader's own host."""
        self._hear(self._hub.leader, message)

    def close(self, timeout_s: float = 0.5) -> None:
        """Last words, then no socket is left."""
        if self._timer:
            self._timer.cancel()
        if self._listener is not None:
            self._loop.forget(self._listener)
            self._listener.close()
        for connection in (*self._by_host.values(), *self._strangers):
            connection.flush(timeout_s)

    def _send(self, sends: Sends) -> None:
        for host, message in sends:
            if host == self._hub.leader:
                self._loop.post(functools.partial(self._local, message))
            elif host in self._by_host:
                self._by_host[host].send(message)
        if self._timer:
            self._timer.cancel()
        if self._hub.finished:
            self._loop.post(self.on_finished)
        else:
            self._timer = self._loop.at(self._hub.deadline, lambda: self._send(self._hub.tick(self._loop.now())))

    def _accept(self, _: int) -> None:
        assert self._listener is not None
        with contextlib.suppress(BlockingIOError, OSError):
            while len(self._strangers) < STRANGERS:
                sock, _address = self._listener.accept()
                self._greet(sock)

    def _greet(self, sock: socket.socket) -> None:
        nonce = os.urandom(16).hex()
        connection = Connection(
            self._loop, sock, lambda line: self._introduced(connection, nonce, line), lambda _: self._drop(connection)
        )
        self._strangers[connection] = self._loop.after(HELLO_TIMEOUT_S, lambda: self._drop(connection))
        connection.send({"type": "nonce", "nonce": nonce})

    def _drop(self, connection: Connection) -> None:
        timer = self._strangers.pop(connection, None)
        if timer is not None:
            timer.cancel()
        connection.close()

    def _introduced(self, connection: Connection, nonce: str, line: bytes) -> None:
        """A stranger's first line must be a hello with the right proof; anything else closes it."""
        if connection not in self._strangers:
            return
        try:
            message = messages.decode(line)
            if message["type"] != "hello":
                raise ValueError("not a hello")
            hello = messages.parse_hello(message)
            proof = str(message.get("mac", ""))
        except ValueError:
            return self._drop(connection)
        if not messages.same(proof, messages.mac(self._token, nonce, hello.host)):
            return self._drop(connection)
        if self._secret:  # a token of the user's own proves more than an address does
            return self._admit(connection, hello)
        self._strangers[connection].cancel()
        self._loop.in_thread(
            functools.partial(look_up, self._addresses.get(hello.host, hello.host), 0),
            lambda found: self._check(connection, hello, found),
        )
        return None

    def _check(self, connection: Connection, hello: Hello, found: list[Address] | Exception) -> None:
        """The address must be one of the host that the peer says it is."""
        peer = connection.peer
        known = [] if isinstance(found, Exception) else [str(address[0]) for _, address in found]
        if peer in known:
            return self._admit(connection, hello)
        why = f"{hello.host} resolves to {', '.join(known) or 'nothing'}, but the connection comes from {peer}"
        connection.send({"type": "refuse", "why": why})
        return self._drop(connection)

    def _admit(self, connection: Connection, hello: Hello) -> None:
        timer = self._strangers.pop(connection, None)
        if timer is None:
            return
        timer.cancel()
        sends = self._hub.hello(self._loop.now(), hello)
        if sends and sends[0][1]["type"] == "refuse":
            connection.send(sends[0][1])
            connection.close()
            return
        host = hello.host
        connection.user_timeout(10.0)
        self._by_host[host] = connection
        connection._on_line = functools.partial(self._line, host, connection)
        connection._on_end = functools.partial(self._ended, host)
        self._send(sends)

    def _ended(self, host: str, reason: str) -> None:
        self._by_host.pop(host, None)
        self._send(self._hub.lost(self._loop.now(), host, f"host lost: {reason}"))

    def _line(self, host: str, connection: Connection, line: bytes) -> None:
        try:
            self._hear(host, messages.decode(line))
        except ValueError as error:
            connection.close()
            self._ended(host, f"sent an unusable message: {error}")

    def _hear(self, host: str, message: Message) -> None:
        now = self._loop.now()
        sends = self._hub.heartbeat(now, host)
        match message["type"]:
            case "fail":
                sends += self._hub.fail(now, host, messages.parse_failure(message))
            case "stop":
                sends += self._hub.stop(now, host, str(message.get("why", "")))
            case "done":
                sends += self._hub.done(now, host, str(message.get("note", "")))
            case "bye":
                sends += self._hub.bye(now, host)
            case "daemon" if host == self._hub.leader:
                sends.append((str(message.get("host")), message))
            case "daemon_exit":
                sends.append((self._hub.leader, message))
            case "heartbeat":
                pass
            case other:
                raise ValueError(f"type {other!r}")
        self._send(sends)


class HubLink:
    """A follower's connection to the hub. It tries until it is told to stop, and says hello when it gets through."""

    def __init__(
        self,
        loop: Loop,
        where: tuple[str, int],
        source: str,
        token: str,
        hello: Hello,
        receive: Callable[[Message], None],
        lost: Callable[[str], None],
    ) -> None:
        self._loop, self._where, self._source, self._token, self._hello = loop, where, source, token, hello
        self._receive, self._lost = receive, lost
        self._connection: Connection | None = None
        self._greeted = False
        self._tries = 0
        self._timer: Timer | None = None
        self._closed = False
        self.last_error = ""
        self._try()

    def send(self, message: Message) -> None:
        if self._connection is not None and self._greeted:
            self._connection.send(message)

    def close(self, timeout_s: float = 0.5) -> None:
        self._closed = True
        if self._timer:
            self._timer.cancel()
        if self._connection is not None:
            self._connection.flush(timeout_s)

    def _again(self, error: str) -> None:
        self.last_error = error
        if not self._closed:
            pause = RETRY_S[min(self._tries, len(RETRY_S) - 1)]
            self._tries += 1
            self._timer = self._loop.after(pause, self._try)

    def _try(self) -> None:
        self._loop.in_thread(functools.partial(self._connect), self._connected)

    def _connect(self) -> socket.socket:
        """Resolves and connects, in a thread: both may block."""
        error: OSError = OSError("no address")
        for family, address in look_up(*self._where):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.settimeout(3.0)
                if self._source:
                    sock.bind((self._source, 0))
                sock.connect(address)
            except OSError as failed:
                sock.close()
                error = failed
            else:
                return sock
        raise error

    def _connected(self, result: socket.socket | Exception) -> None:
        if isinstance(result, Exception):
            return self._again(str(result))
        if self._closed:
            return result.close()
        self._connection = Connection(self._loop, result, self._line, self._ended)
        return None

    def _ended(self, reason: str) -> None:
        self._connection = None
        if self._greeted:
            self._lost(f"hub lost: {reason}")
        else:
            self._again(reason)

    def _line(self, line: bytes) -> None:
        assert self._connection is not None
        try:
            message = messages.decode(line)
            if not self._greeted:
                if message["type"] != "nonce":
                    raise ValueError("no nonce")
                self._greeted = True
                self._connection.user_timeout(10.0)
                nonce = str(message.get("nonce", ""))
                self._connection.send(self._hello.message(messages.mac(self._token, nonce, self._hello.host)))
            self._receive(message)
        except ValueError as error:
            self._connection.close()
            self._connection = None
            if self._greeted:
                self._lost(f"hub lost: sent an unusable message: {error}")
            else:
                self._again(f"not a hub: {error}")


def own_address(host: str, addresses: Mapping[str, str], interface: str) -> str:
    """The address of this host that the job uses: given, else what its name resolves to, else its interface's.

    A name that resolves to loopback (some /etc/hosts files) would hide the hub from the other hosts.
    """
    if host in addresses:
        return addresses[host]
    with contextlib.suppress(OSError):
        for _, address in look_up(host, 0):
            if not str(address[0]).startswith("127.") and address[0] != "::1":
                return str(address[0])
    return interface_address(interface)


def interface_address(interface: str) -> str:
    """The IPv4 address of an interface (SIOCGIFADDR, netdevice(7))."""
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(sock.fileno(), 0x8915, request)[20:24])
        except OSError as error:
            raise UserError(
                "network_interface_name",
                f"{interface!r} has no IPv4 address: {error.strerror}",
                fix="name an interface of this host",
                code=ExitCode.CONFIGURATION,
            ) from None


def free_port(address: str) -> int:
    """A port that is free on this address now."""
    (family, where), *_ = look_up(address, 0)
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.bind(where)
        return int(sock.getsockname()[1])
