"""A follower whose connection to the hub is stuck: it connects anew, and both hear what they have missed."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from algorun import __version__
from algorun.common.event_loop import READ
from algorun.control.wire import wire
from algorun.control.wire.messages import Go, Hello, StartDaemon, Stop, Welcome
from algorun.control.wire.seal import Seal, body
from algorun.network.nonces import fresh

from .pair import SESSION, TOKEN, Pair

STOP = Stop("SIGTERM on algo-2")


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
    pair.until(lambda: pair.follower.lost)
    assert pair.follower.lost == ["hub lost: connection reset, and no other connection within 2 s"]


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
        self.lines += [json.loads(line if line.startswith(b"{") else body(line)) for line in data.splitlines()]
        if not data:
            self.ended = True
            self.pair.loop.forget(self.socket)

    def hello(self, **about) -> list[dict]:
        """What the hub answers, until it closes the connection or takes it."""
        challenge = fresh()
        hello = json.loads(wire.encode(Hello("algo-2", {}, challenge=challenge)))
        seal = Seal(TOKEN, self.nonce, challenge, "algo-2", hub=False)
        self.socket.sendall(seal.close(json.dumps(hello | about).encode() + b"\n"))
        self.pair.until(lambda: self.ended or any(line["type"] in ("end", "refuse") for line in self.lines[1:]))
        self.socket.close()
        return [line for line in self.lines[1:] if line["type"] != "heartbeat"]


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
        answers = Stranger(made).hello(digest={"algorun version": "9.9"}, session="s", heard=0, **about)
        answer = next(each for each in answers if each["type"] == "end")  # heartbeats come before it and after it
        text = f"algorun version differs: {__version__} on algo-1, 9.9 on algo-2"
        assert answer["verdict"]["code"] == 64
        assert answer["verdict"]["failure"]["message"] == text
        assert made.hub.verdict.failure.message == text
    finally:
        made.close()
