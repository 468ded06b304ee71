"""Where a host stands with the hub over all its connections: greeted, joined, returning."""

from __future__ import annotations

import pytest

from algorun.control.wire import wire
from algorun.control.wire.introduction import (
    Applicant,
    ContactPhase,
    Introduction,
    greeting,
    introduced,
    refusal,
    unheard,
)
from algorun.control.wire.messages import Heartbeat, Hello, Nonce, Refuse, Stop, Welcome
from algorun.control.wire.seal import Seal

TOKEN, SESSION, SILENCE_S = "token", "5e55", 2.0
NONCE, CHALLENGE = "0" * 32, "f" * 32
STOP = Stop("SIGTERM on algo-2")


@pytest.fixture
def fresh() -> Introduction:
    return Introduction(0.0, Applicant(Hello("algo-2", {}), TOKEN), SESSION, SILENCE_S)


@pytest.fixture
def joined(fresh: Introduction) -> Introduction:
    fresh.hear(0.0, Welcome(0))
    return fresh


def test_a_nonce_is_answered_with_a_sealed_hello_that_only_the_job_can_open(fresh):
    hello, seal = fresh.answer(NONCE, CHALLENGE)
    assert hello == Hello("algo-2", {}, challenge=CHALLENGE, session=SESSION, heard=0)
    assert not fresh.proven, "whoever has greeted has proved nothing"
    line = seal.close(wire.encode(hello))
    heard, hubs = introduced(TOKEN, NONCE, line[:-1])
    assert heard == hello
    assert seal.open(hubs.close(wire.encode(Welcome(0)))[:-1]) + b"\n" == wire.encode(Welcome(0))
    assert introduced("another", NONCE, line[:-1]) == (hello, None)
    assert introduced(TOKEN, "1" * 32, line[:-1]) == (hello, None)


def test_a_hub_proves_itself_before_it_takes_a_host(fresh):
    fresh.hear(0.0, Heartbeat())
    assert fresh.proven
    assert fresh.phase is ContactPhase.PROVEN


def test_messages_wait_for_the_welcome(fresh):
    assert fresh.say(STOP) is None
    fresh.hear(0.0, Heartbeat())
    assert fresh.say(Stop("again")) is None
    assert fresh.hear(0.0, Welcome(0)) == [STOP, Stop("again")]
    assert fresh.say(Stop("later")) == Stop("later")


def test_messages_wait_while_a_host_returns(joined):
    assert joined.say(STOP) == STOP
    joined.connection_gone()
    assert joined.phase is ContactPhase.RETURNING
    assert joined.say(Stop("lost")) is None
    answer, _ = joined.answer(NONCE, CHALLENGE)
    assert joined.phase is ContactPhase.RETURNING, "the hub has not taken the new connection yet"
    assert answer.session == SESSION
    assert joined.hear(1.0, Welcome(1)) == [Stop("lost")], "only what the hub has not heard"
    assert joined.phase is ContactPhase.JOINED


def test_a_host_that_has_not_joined_does_not_return(fresh):
    fresh.connection_gone()
    assert fresh.phase is ContactPhase.REACHING
    fresh.hear(0.0, Heartbeat())
    fresh.connection_gone()
    assert fresh.phase is ContactPhase.PROVEN


def test_only_a_host_that_has_joined_wants_another_connection(fresh):
    fresh.hear(0.0, Heartbeat())
    assert not fresh.wants_another(60.0), "the hub may still look up the host's name"
    fresh.hear(60.0, Welcome(0))
    assert not fresh.wants_another(60.0 + SILENCE_S - 0.1)
    assert fresh.wants_another(60.0 + SILENCE_S)
    fresh.connection_gone()
    assert fresh.wants_another(60.0 + SILENCE_S)


def test_the_first_line_of_a_connection_is_a_nonce():
    assert greeting(wire.encode(Nonce(NONCE))) == NONCE
    for other in (Heartbeat(), Welcome(0), Refuse("no")):
        with pytest.raises(ValueError, match="no nonce"):
            greeting(wire.encode(other))
    with pytest.raises(ValueError, match="not a nonce"):
        greeting(b'{"type":"nonce","nonce":"x y"}')


def test_only_a_refusal_is_told_without_proof():
    assert refusal(wire.encode(Refuse("another token"))) == "another token"
    seal = Seal(TOKEN, NONCE, CHALLENGE, "algo-2", hub=True)
    for line in (wire.encode(Welcome(0)), b"HTTP/1.1 400", seal.close(wire.encode(Refuse("no")))):
        assert refusal(line) == ""


def test_a_hub_that_claims_to_have_heard_more_than_was_said_is_none(joined):
    with pytest.raises(ValueError, match="heard 3 messages of 0"):
        joined.hear(0.0, Welcome(3))


def test_only_a_heartbeat_says_that_a_host_is_unheard():
    assert unheard(Heartbeat(unheard=True))
    assert not unheard(Heartbeat())
    assert not unheard(STOP)
