"""Readers of the two ends of the control channel: the hub, a host's link to it, and the search for a missing host."""

from __future__ import annotations

import contextlib
import functools
import json
import socket

from algorun.common.free_ports import free_ports
from algorun.control.failures.failure import RankLeft
from algorun.control.hub.hub import Hub, Sends
from algorun.control.wire.introduction import Applicant, Introduction, introduced
from algorun.control.wire.messages import (
    Bye,
    DaemonEnded,
    Done,
    Fail,
    Heartbeat,
    Hello,
    Message,
    Nonce,
    Notice,
    Ready,
    Stop,
)
from algorun.control.wire.seal import Seal
from algorun.job.limits import ControlSettings, Limits
from algorun.network.hub_server import HubServer
from algorun.network.link import HubLink
from algorun.network.nonces import fresh
from algorun.network.rival_search import Lookout
from algorun.network.spare_search import Route

from . import mutations
from .reader import PART, Reader
from .readers_control import CHALLENGE, FROM_HOSTS, FROM_HUB, HOSTS, StepLoop, line, parse

TOKEN = "token"
BACKLOG = 8


class Client:
    """A peer of the hub, from an address of its own: a hundred thousand from one would use up the kernel's ports."""

    count = 0

    def __init__(self, port: int) -> None:
        Client.count = Client.count % (1 << 22) + 1
        self.socket = socket.socket()
        self.socket.bind((_loopback(Client.count), 0))
        self.socket.settimeout(1)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setblocking(False)
        self.heard = b""
        self.seal: Seal | None = None

    def hear(self) -> bytes:
        with contextlib.suppress(OSError):
            self.heard += self.socket.recv(1 << 20)
        return self.heard

    def sealed(self, piece: bytes, host: str) -> bytes:
        """The piece with a seal on each whole line, as a host that holds the token sends it."""
        if self.seal is None:
            first = self.hear().partition(b"\n")[0]
            nonce = json.loads(first)["nonce"] if first else ""
            self.seal = Seal(TOKEN, nonce, CHALLENGE, host, hub=False)
        return closed(self.seal, piece)


class User:
    """A host above its channel: it parses every message, and keeps why the hub was lost."""

    def __init__(self, lost: list[str]) -> None:
        self.hub_lost = lost.append

    def receive(self, message: Message) -> None:
        parse(message)

    def leave(self) -> None:
        pass

    def tell(self, text: str) -> None:
        assert text.isprintable()


def closed(by: Seal, piece: bytes) -> bytes:
    """The piece with a seal on each whole line. A piece of a length that is odd by chance goes as it is: a stranger's."""
    if len(piece) % 7 == 6:
        return piece
    return b"".join(by.close(line) if line.endswith(b"\n") else line for line in piece.splitlines(keepends=True))


class Impostor:
    """Whatever answers in a hub's place. It holds the token all the same, so that its pieces are believed."""

    def __init__(self, peer: socket.socket, loop: StepLoop) -> None:
        self._peer, self._loop, self._heard = peer, loop, b""
        self._nonce, self._seal = fresh(), None
        peer.settimeout(1)

    def say(self, data: bytes) -> None:
        """A greeting, and the pieces; after the host's hello with a seal."""
        self._peer.sendall(line(Nonce(self._nonce)))
        self._loop.turn(2)
        with contextlib.suppress(OSError, ValueError):
            hello = self._peer.recv(1 << 16).partition(b"\n")[0]
            self._seal = introduced(TOKEN, self._nonce, hello)[1]
        for piece in data.split(PART):
            self._peer.sendall(closed(self._seal, piece) if self._seal is not None else piece)
            self._loop.turn(2)


def _loopback(number: int) -> str:
    return socket.inet_ntoa((127 << 24 | number).to_bytes(4, "big"))


@functools.cache
def hub_port() -> int:
    return free_ports("127.0.0.1", 1)[0]


def read_hub(data: bytes) -> None:
    """Pieces for the hub, each from one of three peers (its first byte). Afterwards an honest peer is still greeted."""
    loop, port = StepLoop(), hub_port()
    hub = Hub(loop.now(), HOSTS, Limits())
    server = HubServer(loop, hub, ControlSettings({}, port, TOKEN, own_token=True), User([]))
    clients: dict[int, Client] = {}
    try:
        server.listen("127.0.0.1")
        leaders = Hello("algo-1", {"hosts": "algo-1,algo-2", "python version": "3.11"})
        server.join(leaders)
        server.send(Ready(2, {"engine": "native", "program": "python -u x.py"}, "algo-1", 1234, 1235))
        for piece in data.split(PART)[:24]:
            number = (piece[:1] or b"0")[0] % len(HOSTS)
            if number not in clients:
                clients[number] = Client(port)
                loop.turn()
            client = clients[number]
            host = HOSTS[1 + number % 2]
            with contextlib.suppress(OSError):
                client.socket.sendall(client.sealed(piece[1:], host))
            loop.turn()
        clients[-1] = Client(port)
        loop.turn()
        assert b'"nonce"' in clients[-1].hear(), "the hub no longer greets"
    finally:
        for client in clients.values():
            client.socket.close()
        loop.turn()
        server.close(0.01)
        loop.close()


def hub_seeds() -> list[bytes]:
    def session(peer: bytes, host: str, *kinds: type) -> list[bytes]:
        chosen = [m for m in FROM_HOSTS if isinstance(m, (Hello, Ready, *kinds))]
        return [peer + line(m).replace(b"algo-2", host.encode()) for m in chosen]

    two, three = (
        session(b"0", "algo-2", Heartbeat, RankLeft, Done, Bye),
        session(b"1", "algo-3", RankLeft, Fail, DaemonEnded, Bye),
    )
    both = [piece for each in zip(two, three, strict=True) for piece in each]
    return [
        PART.join(two),
        PART.join(both),
        PART.join(session(b"0", "algo-2", Stop)),
        PART.join(both[:2]) + b"\n{}\n",
        PART.join(
            [*two[:3], b"2" + two[0][1:], b"2" + two[-1][1:]]
        ),  # the first host comes back over another connection
    ]


def read_link(data: bytes) -> None:
    """Pieces from whatever answers where the hub should be: heard, or refused, and the loop lives on."""
    loop, lost = StepLoop(), []
    with contextlib.closing(loop), socket.socket() as listener:
        listener.bind((_loopback(2), 0))
        listener.listen(BACKLOG)
        introduction = Introduction(loop.now(), Applicant(Hello("algo-2", {}), TOKEN), "5e55", 10.0)
        link = HubLink(loop, Route("algo-1", listener.getsockname()), introduction, User(lost))
        link.send(Done())
        loop.turn(2)
        hub, _ = listener.accept()
        with hub, contextlib.suppress(OSError):
            Impostor(hub, loop).say(data)
        loop.turn(2)
        link.send(Heartbeat())
        link.close(0.01)
        assert len(lost) <= 1


def read_lookout(data: bytes) -> None:
    """Pieces from whatever answers where a missing host should be: it may tell a failure, and nothing else."""
    loop = StepLoop()
    hub = Hub(loop.now(), HOSTS[:2], Limits())
    own = Hello("algo-1", {"hosts": "algo-1,algo-2"})
    hub.hello(loop.now(), own)
    with contextlib.closing(loop), socket.socket() as listener:
        listener.bind((_loopback(3), 0))
        listener.listen(BACKLOG)
        address, port = listener.getsockname()
        sent: Sends = []
        settings = ControlSettings({"algo-2": address}, port, TOKEN, own_token=True)
        lookout = Lookout(loop, hub, Applicant(own, TOKEN), settings, sent.extend)
        lookout.look()
        loop.turn(2)
        other, _ = listener.accept()
        with other, contextlib.suppress(OSError):
            Impostor(other, loop).say(data)
        loop.turn(2)
        lookout.close()
        assert hub.verdict is None or hub.verdict.kind == "failed"
        told = [message.text for _, message in sent if isinstance(message, Notice)]
        assert len(told) <= 1
        assert "".join(told).isprintable()


READERS = [
    Reader("hub-stream", read_hub, hub_seeds, mutations.in_pieces(mutations.as_json), 200),
    Reader("link-stream", read_link, lambda: [PART.join(map(line, FROM_HUB[1:])), line(FROM_HUB[0])],
           mutations.in_pieces(mutations.as_json), 250),
    Reader("lookout-stream", read_lookout, lambda: [PART.join(map(line, FROM_HUB[1:])), line(FROM_HUB[0])],
           mutations.in_pieces(mutations.as_json), 250),
]  # fmt: skip
