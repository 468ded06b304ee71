"""Readers of the network and of this host's own sockets: control messages, the hub, a host's link, the ranks' port."""

from __future__ import annotations

import contextlib
import functools
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

from algorun.control import proof, wire
from algorun.control.failure import Failure, RankLeft
from algorun.control.hang import Frame, Stack
from algorun.control.hub import Hub
from algorun.control.messages import (
    AskStacks,
    Bye,
    DaemonEnded,
    Done,
    End,
    Fail,
    Go,
    Hang,
    Heartbeat,
    Hello,
    Message,
    Nonce,
    Notice,
    Ready,
    Refuse,
    Restart,
    SaveFailed,
    StacksSent,
    StartDaemon,
    Stop,
    Verdict,
    Welcome,
    bye,
)
from algorun.event_loop import Loop
from algorun.job.settings import Limits
from algorun.job.values import Sourced
from algorun.network.addresses import free_ports
from algorun.network.connection import Connection
from algorun.network.hub_server import HubShell
from algorun.network.link import HubLink
from algorun.network.rival_search import Lookout
from algorun.plan import cluster

from . import mutations
from .reader import PART, Reader

HOSTS = ("algo-1", "algo-2", "algo-3")
TOKEN = "token"
FAILURE = Failure(
    "exception", "algo-2", 1, "ValueError: x", 1, "Traceback ..\nValueError: x", "a hint",
    note="no restart: algo-3 was lost", others="also: lost: algo-3, exit 66\nthen: exit: rank 2 ..",
)  # fmt: skip
TURNS = 3  # of the loop after each write: accept, read, answer
BACKLOG = 8


class StepLoop(Loop):
    """A loop that is turned by hand; names are not looked up, and what would be a thread runs at once."""

    def turn(self, times: int = TURNS) -> None:
        for _ in range(times):
            self.post(self.stop)
            self.run()

    def in_thread(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            result = work()
        except Exception as error:
            result = error
        self.post(lambda: done(result))


def line(message: Message) -> bytes:
    return wire.encode(message)


FROM_HOSTS = [
    Hello("algo-2", {"hosts": "algo-1,algo-2", "python version": "3.11"}, "", "@MAC@", "5e55", 0),
    Ready(2, {"engine": "native", "program": "python -u x.py"}, "algo-2", 1234, 1235),
    Heartbeat(0),
    Fail(FAILURE),
    SaveFailed(FAILURE),
    RankLeft("algo-2", 1, 20, 0),
    Hang(600.0),
    Stack(1, "algo-2", 20, (Frame("/opt/ml/code/train.py", 3, "step"),), source="loss.item()"),
    StacksSent(),
    Stop("SIGTERM on algo-2"),
    Done("loss=0.1"),
    bye(Verdict("failed", 1, FAILURE)),
    DaemonEnded("ab", 1),
]
FROM_HUB = [
    Nonce("00" * 16),
    Welcome(0),
    Go(0, "algo-1", 1234, dict.fromkeys(HOSTS, 2), 1235),
    Heartbeat(0, unheard=True),
    AskStacks(),
    Restart(1, FAILURE),
    Stop("SIGTERM on algo-1"),
    End(Verdict("failed", 1, FAILURE)),
    End(Verdict("ok", 0, None, "loss=0.1")),
    Refuse("no"),
    Notice("a warning"),
    StartDaemon("ab", "algo-2", "orted -mca ess env"),
]


def parse(message: Message) -> None:
    """What hub and hosts rely on in a message that the codec has taken."""
    match message:
        case Hello():
            assert message.session.isascii()
        case Fail(failure) | SaveFailed(failure):
            assert fits(End(Verdict("failed", failure.code, failure)))
            assert failure.secondary in (True, False)
            failure.text()
        case RankLeft():
            assert min(message.rank, message.step, message.attempt) >= 0
        case Go():
            slots = {host: Sourced(count, "the gate") for host, count in message.slots.items()}
            if slots and sum(message.slots.values()) <= 1 << 14:
                cluster.resolve(tuple(slots), slots)
            assert all(0 < count <= wire.MOST_SLOTS for count in message.slots.values())
        case End(verdict):
            assert 0 <= verdict.code < 256
            assert (verdict.code == 0) == (verdict.failure is None)
        case Stop(why):
            assert fits(Stop(why))


def fits(message: Message) -> bool:
    """What came in fits a line, so what goes out to all hosts has to fit too."""
    try:
        return len(wire.encode(message)) <= wire.LONGEST
    except ValueError:
        return False


def read_message(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        message = wire.decode(data)
        parse(message)


@contextlib.contextmanager
def pair(loop: StepLoop) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a TCP connection over loopback."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        near = socket.create_connection(listener.getsockname(), timeout=1)
        far, _ = listener.accept()
    with near, far:
        yield near, far


def read_connection(data: bytes) -> None:
    """Pieces of a stream: the lines come out as they went in, however they were cut."""
    loop, lines, ended = StepLoop(), [], []
    with contextlib.closing(loop), pair(loop) as (near, far):
        connection = Connection(loop, far, lines.append, ended.append)
        with contextlib.suppress(OSError):
            for piece in data.split(PART):
                near.sendall(piece)
                loop.turn(1)
        near.shutdown(socket.SHUT_WR)
        for _ in range(1 + len(data) // 4096 + TURNS):
            loop.turn(1)
        connection.close()
    *whole, _ = data.replace(PART, b"").split(b"\n")
    assert lines == whole[: len(lines)]
    assert len(ended) == 1
    assert ended[0] == "line too long" or lines == whole


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

    def hear(self) -> bytes:
        with contextlib.suppress(OSError):
            self.heard += self.socket.recv(1 << 20)
        return self.heard

    def proof(self, host: str) -> bytes:
        """The right answer to the hub's nonce."""
        first = self.hear().partition(b"\n")[0]
        nonce = json.loads(first)["nonce"] if first else ""
        return proof.mac(TOKEN, nonce, host).encode()


def _loopback(number: int) -> str:
    return socket.inet_ntoa((127 << 24 | number).to_bytes(4, "big"))


@functools.cache
def hub_port() -> int:
    return free_ports("127.0.0.1", 1)[0]


def read_hub(data: bytes) -> None:
    """Pieces for the hub, each from one of three peers (its first byte). Afterwards an honest peer is still greeted."""
    loop, port = StepLoop(), hub_port()
    hub = Hub(loop.now(), HOSTS, Limits())
    shell = HubShell(loop, hub, TOKEN, True, {})
    clients: dict[int, Client] = {}
    try:
        shell.listen("127.0.0.1", port)
        leaders = Hello("algo-1", {"hosts": "algo-1,algo-2", "python version": "3.11"})
        shell.join(leaders, lambda message: None)
        shell.send(Ready(2, {"engine": "native", "program": "python -u x.py"}, "algo-1", 1234, 1235))
        for piece in data.split(PART)[:24]:
            number = (piece[:1] or b"0")[0] % len(HOSTS)
            if number not in clients:
                clients[number] = Client(port)
                loop.turn()
            client = clients[number]
            host = HOSTS[1 + number % 2]
            with contextlib.suppress(OSError):
                client.socket.sendall(piece[1:].replace(b"@MAC@", client.proof(host)))
            loop.turn()
        clients[-1] = Client(port)
        loop.turn()
        assert b'"nonce"' in clients[-1].hear(), "the hub no longer greets"
    finally:
        for client in clients.values():
            client.socket.close()
        loop.turn()
        shell.close(0.01)
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
        link = HubLink(
            loop, listener.getsockname(), "", TOKEN, Hello("algo-2", {}), lambda message: parse(message), lost.append, 10.0
        )  # fmt: skip
        link.send(Done())
        loop.turn(2)
        hub, _ = listener.accept()
        with hub, contextlib.suppress(OSError):
            for piece in data.split(PART):
                hub.sendall(piece)
                loop.turn(2)
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
        told: list[str] = []
        lookout = Lookout(loop, hub, own, TOKEN, ({"algo-2": address}, port), lambda sends: None, told.append)
        lookout.look()
        loop.turn(2)
        other, _ = listener.accept()
        with other, contextlib.suppress(OSError):
            for piece in data.split(PART):
                other.sendall(piece)
                loop.turn(2)
        loop.turn(2)
        lookout.close()
        assert hub.verdict is None or hub.verdict.kind == "failed"
        assert len(told) <= 1
        assert "".join(told).isprintable()


EACH = [line(message) for message in (*FROM_HOSTS, *FROM_HUB)]
READERS = [
    Reader("control-message", read_message, lambda: EACH, mutations.as_json, 3000),
    Reader("connection", read_connection, lambda: [PART.join(EACH), b"".join(EACH)], mutations.in_pieces(mutations.raw), 300),
    Reader("hub-stream", read_hub, hub_seeds, mutations.in_pieces(mutations.as_json), 200),
    Reader("link-stream", read_link, lambda: [PART.join(map(line, FROM_HUB)), line(FROM_HUB[0])],
           mutations.in_pieces(mutations.as_json), 250),
    Reader("lookout-stream", read_lookout, lambda: [PART.join(map(line, FROM_HUB)), line(FROM_HUB[0])],
           mutations.in_pieces(mutations.as_json), 250),
]  # fmt: skip
