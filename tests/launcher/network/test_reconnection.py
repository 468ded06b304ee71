"""A follower whose connection to the hub is stuck: it connects anew, and both hear what they have missed.

A relay stands for the network. It can hold what passes, and the kernels see a connection that is alive.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Iterator

import pytest

from algorun import __version__
from algorun.common.event_loop import READ, Loop
from algorun.common.free_ports import free_ports
from algorun.control import proof, wire
from algorun.control.handshake import Applicant, Handshake
from algorun.control.hub import Hub
from algorun.control.messages import Go, Heartbeat, Hello, Message, Nonce, StartDaemon, Stop, Welcome
from algorun.job.limits import ControlSettings, Limits
from algorun.network.hub_server import HubServer
from algorun.network.link import HubLink
from algorun.network.spare_search import Route
from tests.launcher.jobs import hello, ready

TOKEN = "token"
SESSION = "5" * 32
BEAT_S, SILENCE_S, LIMIT_S = 0.05, 0.1, 20.0
STOP = Stop("SIGTERM on algo-2")


class Relay:
    """Between a follower and the hub. While it holds, nothing passes over connections made before, or none can be made."""

    def __init__(self, loop: Loop, hub: tuple[str, int]) -> None:
        self.loop, self.hub, self.held = loop, hub, set()
        self.last = b"\0"  # the hub dies as soon as it has said this
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.where = self.listener.getsockname()
        self.sockets: list[socket.socket] = []
        loop.watch(self.listener, READ, self._accept)

    def _accept(self, _: int) -> None:
        near, _ = self.listener.accept()
        far = socket.create_connection(self.hub, timeout=LIMIT_S)
        self.sockets += [near, far]
        for one, other in ((near, far), (far, near)):
            self.loop.watch(one, READ, lambda _, one=one, other=other: self._pass(one, other))

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        data = b""
        with contextlib.suppress(
            ConnectionResetError
        ):  # one end closed before it had read everything: the same as an end
            data = one.recv(65536)
        if data:
            other.sendall(data)
            if self.last in data:
                self.die()
        else:
            for each in (one, other):
                self.loop.forget(each)
                each.close()

    def hold(self) -> None:
        """Everything that passes from now on, on the connections that are there, is lost."""
        for each in self.sockets:
            self.loop.forget(each)

    def die(self) -> None:
        """Resets all connections, as the kernel of a dead hub does, and takes no more."""
        for each in self.sockets:
            self.loop.forget(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self.loop.forget(self.listener)
        for each in (self.listener, *self.sockets):
            self.loop.forget(each)
            each.close()


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
        self.handshake = Handshake(self.loop.now(), Applicant(hello("algo-2"), TOKEN), SESSION, SILENCE_S)
        route = Route("algo-1", self.relay.where)
        self.link = HubLink(self.loop, route, self.handshake, self.follower)
        if not join:
            self.link.close()
        self._beat()

    def _beat(self) -> None:
        self.link.send(Heartbeat())
        self.loop.after(BEAT_S, self._beat)

    def until(self, true) -> None:
        end = self.loop.now() + LIMIT_S
        while not true():
            assert self.loop.now() < end, (self.follower.heard, self.follower.lost)
            self.loop.after(0.01, self.loop.stop)
            self.loop.run()

    def kinds(self) -> list[type]:
        return [type(message) for message in self.follower.heard if not isinstance(message, (Heartbeat, Nonce))]

    def run(self) -> None:
        self.server.send(ready("algo-1"))
        self.link.send(ready("algo-2"))
        self.until(lambda: Go in self.kinds())

    def close(self) -> None:
        self.link.close()
        self.server.close()
        self.relay.close()
        self.loop.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def test_what_was_lost_in_a_gap_arrives_once_over_the_next_connection(pair):
    pair.run()
    pair.relay.hold()
    pair.link.send(STOP)
    pair.server.send(StartDaemon("a", "algo-2", "x"))
    pair.until(lambda: {StartDaemon, Stop} <= set(pair.kinds()))
    pair.until(lambda: STOP in pair.leader.heard)
    assert pair.kinds() == [Welcome, Go, Welcome, StartDaemon, Stop]
    assert pair.leader.heard.count(STOP) == 1
    assert not pair.follower.lost


def test_a_second_gap_is_survived_as_well(pair):
    pair.run()
    for number in range(3):
        pair.relay.hold()
        pair.server.send(StartDaemon(str(number), "algo-2", "x"))
        pair.until(lambda: pair.kinds().count(StartDaemon) == number + 1)  # noqa: B023 - asked at once
    assert [message.id for message in pair.follower.heard if isinstance(message, StartDaemon)] == ["0", "1", "2"]
    assert not pair.follower.lost
    assert pair.hub.verdict is None


def test_a_hub_that_closes_is_lost_at_once_after_a_gap_too(pair):
    pair.run()
    pair.relay.hold()
    pair.until(lambda: pair.kinds().count(Welcome) == 2)
    pair.server.close()
    pair.until(lambda: pair.follower.lost)
    assert pair.follower.lost == ["hub lost: connection closed"]


def test_a_hub_that_dies_behind_its_welcome_is_lost_at_once(pair):
    """The follower then learns of it as it writes what the hub has missed."""
    pair.run()
    pair.relay.hold()
    pair.link.send(STOP)
    pair.relay.last = b'"welcome"'
    pair.until(lambda: pair.kinds().count(Welcome) == 2)
    assert pair.follower.lost == ["hub lost: Connection reset by peer"]


def test_a_follower_that_closes_is_lost_at_once_after_a_gap_too(pair):
    pair.run()
    pair.relay.hold()
    pair.until(lambda: pair.kinds().count(Welcome) == 2)
    pair.link.close()
    pair.until(lambda: "algo-2" in pair.hub.departed)


class Stranger:
    """Speaks to the hub by hand."""

    def __init__(self, pair: Pair, source: str = "127.0.0.1") -> None:
        self.pair, self.socket, self.lines, self.ended = pair, socket.socket(), [], False
        self.socket.bind((source, 0))
        self.socket.connect(pair.relay.hub)
        pair.loop.watch(self.socket, READ, self._read)
        pair.until(lambda: self.lines)
        self.nonce = self.lines[0]["nonce"]

    def _read(self, _: int) -> None:
        data = self.socket.recv(65536)
        self.lines += [json.loads(line) for line in data.splitlines()]
        if not data:
            self.ended = True
            self.pair.loop.forget(self.socket)

    def hello(self, **about) -> list[dict]:
        """What the hub answers, until it closes the connection or takes it."""
        hello = json.loads(wire.encode(Hello("algo-2", {}, mac=proof.mac(TOKEN, self.nonce, "algo-2"))))
        self.socket.sendall(json.dumps(hello | about).encode() + b"\n")
        self.pair.until(lambda: self.ended or any(line["type"] in ("end", "refuse") for line in self.lines[1:]))
        self.socket.close()
        return self.lines[1:]


@pytest.mark.parametrize("session", ["", None, "\ud800"])
def test_a_hello_without_a_session_is_none(pair, session):
    pair.run()
    assert Stranger(pair).hello(session=session, heard=0) == []
    assert not pair.follower.lost


def test_nobody_replaces_a_host_without_its_session(pair):
    pair.run()
    (answer,) = Stranger(pair).hello(session="0" * 32, heard=0)
    assert answer == {"type": "refuse", "why": "algo-2 has said hello already"}
    assert not pair.follower.lost
    assert pair.hub.verdict is None


def test_nobody_replaces_a_host_from_another_address(pair):
    pair.run()
    assert Stranger(pair, "127.0.0.9").hello(session=SESSION, heard=0) == []
    assert not pair.follower.lost


@pytest.mark.parametrize("heard", [-1, 99, "x", None])
def test_a_count_that_cannot_be_replaces_nothing(pair, heard):
    pair.run()
    assert Stranger(pair).hello(session=SESSION, heard=heard) == []
    pair.server.send(StartDaemon("a", "algo-2", "x"))
    pair.until(lambda: StartDaemon in pair.kinds())
    assert not pair.follower.lost


@pytest.mark.parametrize("about", [{}, {"later": "a field that this version does not know"}])
def test_a_host_of_another_version_ends_the_job_which_names_both_versions(about):
    made = Pair(join=False)
    made.server.join(Hello("algo-1", {"algorun version": __version__}))
    try:
        *_, answer = Stranger(made).hello(digest={"algorun version": "9.9"}, session="s", heard=0, **about)
        text = f"algorun version differs: {__version__} on algo-1, 9.9 on algo-2"
        assert answer["type"] == "end"
        assert answer["verdict"]["code"] == 64
        assert answer["verdict"]["failure"]["message"] == text
        assert made.hub.verdict.failure.message == text
    finally:
        made.close()
