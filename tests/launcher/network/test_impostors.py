"""Whoever speaks the protocol without the job's token, or meddles with what passes between two that have it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algorun.common.event_loop import READ
from algorun.control.failures.failure import Failure
from algorun.control.wire import wire
from algorun.control.wire.messages import (
    DaemonEnded,
    End,
    Go,
    Heartbeat,
    Hello,
    Message,
    Nonce,
    Notice,
    Refuse,
    Restart,
    StartDaemon,
    Stop,
    Verdict,
    Welcome,
)
from algorun.control.wire.seal import Seal
from algorun.network.nonces import fresh

from .pair import LIMIT_S, SESSION, TOKEN, Meddle, Pair

FAILURE = Failure("exit", "algo-2", 1, "a lie")
LIES: list[Message] = [
    Welcome(0),
    Go(0, "192.0.2.1", 1, {"algo-1": 1, "algo-2": 1}),
    StartDaemon("1", "algo-2", "orted --mca plm_rsh_agent /tmp/evil"),
    Stop("a lie"),
    Restart(1, FAILURE),
    End(Verdict("failed", 1, FAILURE)),
    Notice("a lie"),
    Heartbeat(unheard=True),
]


class Impostor:
    """Answers in the hub's place: greets each connection, and then does as the test says with the host's hello."""

    def __init__(self, pair: Pair, answer) -> None:
        self.pair, self.answer, self.hellos = pair, answer, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.sockets = [self.listener]
        pair.loop.watch(self.listener, READ, self._accept)

    def _accept(self, _: int) -> None:
        peer, _ = self.listener.accept()
        nonce = fresh()
        self.sockets.append(peer)
        peer.sendall(wire.encode(Nonce(nonce)))
        self.pair.loop.watch(peer, READ, lambda _: self._read(peer, nonce))

    def _read(self, peer: socket.socket, nonce: str) -> None:
        try:
            data = peer.recv(65536)
        except OSError:
            data = b""
        if not data:
            return self.pair.loop.forget(peer)
        if not self.hellos or data.count(b'"hello"'):
            self.hellos.append(data)
            try:
                peer.sendall(self.answer(nonce, data))
            except OSError:
                return None
        return None

    def close(self) -> None:
        for each in self.sockets:
            self.pair.loop.forget(each)
            each.close()


def unsealed(nonce: str, hello: bytes) -> bytes:
    return b"".join(map(wire.encode, LIES))


def without_the_token(nonce: str, hello: bytes) -> bytes:
    seal = Seal("a guess", nonce, json.loads(hello[33:])["challenge"], "algo-2", hub=True)
    return b"".join(seal.close(wire.encode(each)) for each in LIES)


def reflected(nonce: str, hello: bytes) -> bytes:
    """The host's own proven words."""
    return hello * 3


def in_the_host_s_role(nonce: str, hello: bytes) -> bytes:
    """With a host's key, as another host of the job could make it from a wrong use of the token."""
    seal = Seal(TOKEN, nonce, json.loads(hello[33:])["challenge"], "algo-2", hub=False)
    return b"".join(seal.close(wire.encode(each)) for each in LIES)


def for_another_host(nonce: str, hello: bytes) -> bytes:
    seal = Seal(TOKEN, nonce, json.loads(hello[33:])["challenge"], "algo-3", hub=True)
    return b"".join(seal.close(wire.encode(each)) for each in LIES)


def without_the_challenge(nonce: str, hello: bytes) -> bytes:
    """All that a hub said over another connection, with the same nonce: a replay."""
    seal = Seal(TOKEN, nonce, "0" * 32, "algo-2", hub=True)
    return b"".join(seal.close(wire.encode(each)) for each in LIES)


def from_the_second_line(nonce: str, hello: bytes) -> bytes:
    """What the hub would say, less its first line."""
    seal = Seal(TOKEN, nonce, json.loads(hello[33:])["challenge"], "algo-2", hub=True)
    return b"".join([seal.close(wire.encode(each)) for each in LIES][1:])


WAYS = [
    unsealed,
    without_the_token,
    reflected,
    in_the_host_s_role,
    for_another_host,
    without_the_challenge,
    from_the_second_line,
]


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_host_believes_nobody_in_the_hub_s_place(way, pair):
    """It warns, goes on trying, and joins the hub as soon as that answers."""
    true, impostor = pair.relay.hub, Impostor(pair, way)
    pair.relay.hub = impostor.listener.getsockname()
    pair.until(lambda: len(impostor.hellos) >= 2)
    assert pair.follower.heard == []
    assert pair.follower.lost == []
    (warning,) = pair.follower.told
    assert "127.0.0.1 port" in warning
    assert "does not prove that it holds the job's token (ALGORUN_TOKEN" in warning
    assert "does not prove" in pair.link.seen, "the failure of a gate that ends now says it too"
    pair.relay.hub = true
    pair.run()
    assert pair.kinds() == [Welcome, Go]
    impostor.close()


def test_what_an_impostor_says_in_refusal_is_shown_and_not_obeyed(pair):
    true = pair.relay.hub
    impostor = Impostor(pair, lambda nonce, hello: wire.encode(Refuse("pay \x1b[31m 100\n")))
    pair.relay.hub = impostor.listener.getsockname()
    pair.until(lambda: pair.follower.told)
    assert pair.follower.heard == []
    (warning,) = pair.follower.told
    assert "it sent 'pay \\x1b[31m 100\\n'" in warning
    pair.relay.hub = true
    pair.run()
    impostor.close()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_impostor_on_the_way_back_is_not_believed(way, pair):
    """The network is diverted in the middle of the job. The host looks on, and finds the hub once it answers again."""
    pair.run()
    true, impostor = pair.relay.hub, Impostor(pair, way)
    pair.relay.hub = impostor.listener.getsockname()
    pair.relay.hold()
    pair.until(lambda: len(impostor.hellos) >= 2)
    assert pair.kinds() == [Welcome, Go]
    assert pair.follower.lost == []
    pair.relay.hub = true
    pair.server.send(StartDaemon("1", "algo-2", "x"))
    pair.until(lambda: StartDaemon in pair.kinds())
    assert pair.kinds() == [Welcome, Go, Welcome, StartDaemon]
    impostor.close()


class Thief:
    """Connects to the hub without the token, with all that it has heard of the job's own connections."""

    def __init__(self, pair: Pair, *lines: bytes) -> None:
        self.pair, self.answer = pair, b""
        self.socket = socket.create_connection(pair.relay.hub, LIMIT_S)
        pair.until(self._greeted)
        self.socket.sendall(b"".join(lines))
        self.socket.settimeout(0.0)
        pair.until(self._closed)

    def _greeted(self) -> bool:
        self.socket.settimeout(0.0)
        try:
            return b"nonce" in self.socket.recv(4096)
        except BlockingIOError:
            return False

    def _closed(self) -> bool:
        try:
            data = self.socket.recv(4096)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True
        self.answer += data
        return not data


def test_the_hub_takes_nothing_that_was_heard_before_or_made_without_the_token(pair):
    """The hello of the host itself, its later lines, the hub's own lines, hellos with other tokens and other hosts' names."""
    heard: list[tuple[str, bytes]] = []
    pair.relay.meddle = lambda who, connection, number, line: heard.append((who, line)) or [line]
    pair.relay.reset()  # the conversation over the next connection is heard whole
    pair.run()
    pair.link.send(Stop("SIGTERM on algo-2"))
    pair.until(lambda: Stop in pair.kinds())
    of_host, of_hub = ([line + b"\n" for who, line in heard if who == each] for each in ("host", "hub"))
    hellos = [line for line in of_host if b'"hello"' in line]
    assert hellos
    before = pair.hub.verdict, set(pair.hub.departed), pair.hub.state
    for lines in (
        hellos,
        of_host,
        of_hub,
        of_hub[1:],
        of_host[1:],
        [json_only(hellos[0])],
        [json_only(hellos[0]), *of_host[1:]],
    ):
        thief = Thief(pair, *lines)
        assert b"welcome" not in thief.answer
    for host in ("algo-1", "algo-2", "algo-3", "\u20ac"):
        hello = wire.encode(Hello(host, {}, challenge="0" * 32, session=SESSION))
        for seal in (
            Seal("a guess", "0" * 32, "0" * 32, host, hub=False),
            Seal("", "0" * 32, "0" * 32, host, hub=True),
        ):
            assert b"welcome" not in Thief(pair, seal.close(hello)).answer
    assert (pair.hub.verdict, set(pair.hub.departed), pair.hub.state) == before
    assert pair.follower.lost == []
    pair.server.send(StartDaemon("1", "algo-2", "x"))
    pair.until(lambda: StartDaemon in pair.kinds())


def json_only(line: bytes) -> bytes:
    return line[33:]


# -- in the middle -------------------------------------------------------------------------------------------------------

CHANGES = ("flip", "drop", "twice", "swap", "insert", "unsealed", "cut", "lie")


def meddle(of: dict[tuple[str, int], str]) -> Meddle:
    """Does these things to lines of the first connection, by who sends it and its number. Later connections are left alone."""
    kept: dict[str, bytes] = {}

    def one(who: str, connection: int, number: int, line: bytes) -> list[bytes]:
        what = of.get((who, number)) if connection == 0 else None
        before = [kept.pop(who)] if who in kept else []
        match what:
            case "flip":
                return [*before, line[:-3] + bytes([line[-3] ^ 1]) + line[-2:]]
            case "drop":
                return before
            case "twice":
                return [*before, line, line]
            case "swap":
                kept[who] = line
                return before
            case "insert":
                return [*before, b"0" * 32 + b" " + wire.encode(End(Verdict("failed", 1, FAILURE)))[:-1], line]
            case "unsealed":
                return [*before, line[33:]]
            case "cut":
                return [*before, line[: len(line) // 2], line[len(line) // 2 :]]
            case "lie":
                return [*before, line[:33] + wire.encode(Stop("a lie"))[:-1]]
        return [line, *before]

    return one


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["hub", "host"]), st.integers(1, 9)), st.sampled_from(CHANGES), min_size=1, max_size=3
    )
)
def test_nothing_that_is_changed_on_the_way_is_heard_and_nothing_is_lost(changes):
    """Both sides notice, connect anew, and hear each message once and in order. Line 0 is each side's first."""
    pair = Pair()
    try:
        pair.relay.meddle = meddle(changes)
        pair.run()
        for number in range(4):
            pair.server.send(StartDaemon(str(number), "algo-2", "x"))
            pair.link.send(DaemonEnded(str(number), number))
        pair.until(lambda: pair.kinds().count(StartDaemon) >= 4)
        pair.until(lambda: sum(isinstance(each, DaemonEnded) for each in pair.leader.heard) >= 4)
        assert [each.id for each in pair.follower.heard if isinstance(each, StartDaemon)] == list("0123")
        assert [each.id for each in pair.leader.heard if isinstance(each, DaemonEnded)] == list("0123")
        assert set(pair.kinds()) == {Welcome, Go, StartDaemon}
        assert pair.kinds().count(Go) == 1
        assert (pair.follower.lost, pair.hub.verdict) == ([], None)
    finally:
        pair.close()
