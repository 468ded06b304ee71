"""A hub with its server and a follower's link in one loop, and what stands between them. For tests.

A relay stands for the network. It can hold, change or reset what passes, and the kernels see a connection that is alive.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable

from algorun.common.event_loop import READ, Loop
from algorun.common.free_ports import free_ports
from algorun.control.hub.hub import Hub
from algorun.control.wire.introduction import Applicant, Introduction
from algorun.control.wire.messages import Go, Heartbeat, Message
from algorun.job.limits import ControlSettings, Limits
from algorun.network.hub_server import HubServer
from algorun.network.link import HubLink
from algorun.network.spare_search import Route
from tests.launcher.jobs import hello, ready

TOKEN = "token"
SESSION = "5" * 32
BEAT_S, SILENCE_S, LIMIT_S = 0.05, 0.1, 20.0


Meddle = Callable[[str, int, int, bytes], list[bytes]]
"""Whoever stands between: gets who has sent a line ("hub" or "host"), the numbers of the connection and the line, and the line
without its newline. What it returns is passed on."""


def at_once(sock: socket.socket) -> None:
    """Closes with a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Relay:
    """Between a follower and the hub. While it holds, nothing passes over connections made before, or none can be made."""

    def __init__(self, loop: Loop, hub: tuple[str, int]) -> None:
        self.loop, self.hub, self.held = loop, hub, set()
        self.meddle: Meddle | None = None
        self.connections = 0
        self.last = b"\0"  # the hub dies as soon as it has said this; a MAC and a seal leave a message's text as it is
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.where = self.listener.getsockname()
        self.sockets: list[socket.socket] = []
        loop.watch(self.listener, READ, self._accept)

    def _accept(self, _: int) -> None:
        near, _ = self.listener.accept()
        far = socket.create_connection(self.hub, timeout=LIMIT_S)
        self.sockets += [near, far]
        self.connections += 1
        for one, other, who in ((near, far, "host"), (far, near, "hub")):
            way = Way(who, self.connections - 1)
            self.loop.watch(one, READ, lambda _, one=one, other=other, way=way: self._pass(one, other, way))

    def _pass(self, one: socket.socket, other: socket.socket, way: Way) -> None:
        try:
            data = one.recv(65536)
        except ConnectionResetError:
            self.loop.forget(one)
            self.loop.forget(other)
            one.close()
            return at_once(other)
        if not data:
            for each in (one, other):
                self.loop.forget(each)
                each.close()
            return None
        with contextlib.suppress(OSError):  # the other side has reset it meanwhile
            other.sendall(data if self.meddle is None else way.changed(data, self.meddle))
        if self.last in data:
            self.die()
        return None

    def shut(self) -> None:
        """No further connection can be made."""
        self.loop.forget(self.listener)
        self.listener.close()

    def reset(self) -> None:
        """Resets the connections that are there, as something between two hosts does that has forgotten them."""
        for each in self.sockets:
            self.loop.forget(each)
            with contextlib.suppress(OSError):
                at_once(each)
        self.sockets.clear()

    def hold(self) -> None:
        """Everything that passes from now on, on the connections that are there, is lost."""
        for each in self.sockets:
            self.loop.forget(each)

    def die(self) -> None:
        """Resets all connections, as the kernel of a dead hub does, and takes no more."""
        self.reset()
        self.close()

    def close(self) -> None:
        self.loop.forget(self.listener)
        for each in (self.listener, *self.sockets):
            self.loop.forget(each)
            each.close()


class Way:
    """The lines of one connection in one direction."""

    def __init__(self, who: str, connection: int) -> None:
        self._who, self._connection = who, connection
        self._begun, self._count = b"", 0

    def changed(self, data: bytes, meddle: Meddle) -> bytes:
        *lines, self._begun = (self._begun + data).split(b"\n")
        out = b""
        for line in lines:
            out += b"".join(each + b"\n" for each in meddle(self._who, self._connection, self._count, line))
            self._count += 1
        return out


class User:
    """A host above its channel: what it has heard."""

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.lost: list[str] = []
        self.told: list[str] = []
        self.receive, self.hub_lost, self.tell = self.heard.append, self.lost.append, self.told.append

    def leave(self) -> None:
        pass


class Pair:
    """A hub with its server and a follower's link, in one loop."""

    def __init__(self, *, join: bool = True) -> None:
        self.loop = Loop()
        port = free_ports("127.0.0.1", 1)[0]
        self.hub = Hub(self.loop.now(), ("algo-1", "algo-2"), Limits(heartbeat_s=BEAT_S, heartbeat_timeout_s=LIMIT_S))
        self.leader, self.follower = User(), User()
        settings = ControlSettings({"algo-2": "127.0.0.1"}, port, TOKEN, own_token=False)
        self.server = HubServer(self.loop, self.hub, settings, self.leader)
        self.server.listen("127.0.0.1")
        if join:
            self.server.join(hello("algo-1"))
        self.relay = Relay(self.loop, ("127.0.0.1", port))
        self.link = self.follow()
        if not join:
            self.link.close()
        self._beat()

    def follow(self) -> HubLink:
        """A follower's link, from now on the one in use."""
        introduction = Introduction(self.loop.now(), Applicant(hello("algo-2"), TOKEN), SESSION, SILENCE_S)
        self.link = HubLink(self.loop, Route("algo-1", self.relay.where), introduction, self.follower)
        return self.link

    def turn(self, times: int) -> None:
        for _ in range(times):
            self.loop.after(0.01, self.loop.stop)
            self.loop.run()

    def _beat(self) -> None:
        self.link.send(Heartbeat())
        self.loop.after(BEAT_S, self._beat)

    def until(self, true) -> None:
        end = self.loop.now() + LIMIT_S
        while not true():
            assert self.loop.now() < end, (self.kinds(), self.follower.lost, self.hub.verdict)
            self.loop.after(0.01, self.loop.stop)
            self.loop.run()

    def kinds(self) -> list[type]:
        return [type(message) for message in self.follower.heard if not isinstance(message, Heartbeat)]

    def run(self) -> None:
        self.server.send(ready("algo-1"))
        self.link.send(ready("algo-2"))
        self.until(lambda: Go in self.kinds())

    def close(self) -> None:
        self.link.close()
        self.server.close()
        self.relay.close()
        self.loop.close()
