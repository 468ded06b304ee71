"""Where a host stands with the hub over all its connections: greeted, joined, returning."""

from __future__ import annotations

import pytest

from algorun.control import proof
from algorun.control.handshake import Applicant, Handshake, Phase, unheard
from algorun.control.messages import Heartbeat, Hello, Nonce, Stop, Welcome

TOKEN, SESSION, SILENCE_S = "token", "5e55", 2.0
STOP = Stop("SIGTERM on algo-2")


@pytest.fixture
def fresh() -> Handshake:
    return Handshake(0.0, Applicant(Hello("algo-2", {}), TOKEN), SESSION, SILENCE_S)


@pytest.fixture
def joined(fresh: Handshake) -> Handshake:
    fresh.hear(0.0, Nonce("n"))
    fresh.hear(0.0, Welcome(0))
    return fresh


def test_a_nonce_is_answered_with_the_proof_and_the_session(fresh):
    assert not fresh.greeted
    (answer,) = fresh.hear(0.0, Nonce("n"))
    assert answer == Hello("algo-2", {}, mac=proof.mac(TOKEN, "n", "algo-2"), session=SESSION, heard=0)
    assert fresh.greeted
    assert fresh.phase is Phase.GREETED


def test_messages_wait_for_the_welcome(fresh):
    assert fresh.say(STOP) is None
    fresh.hear(0.0, Nonce("n"))
    assert fresh.say(Stop("again")) is None
    assert fresh.hear(0.0, Welcome(0)) == [STOP, Stop("again")]
    assert fresh.say(Stop("later")) == Stop("later")


def test_messages_wait_while_a_host_returns(joined):
    assert joined.say(STOP) == STOP
    joined.connection_gone()
    assert joined.phase is Phase.RETURNING
    assert joined.say(Stop("lost")) is None
    (answer,) = joined.hear(1.0, Nonce("m"))
    assert joined.phase is Phase.RETURNING, "the hub has not taken the new connection yet"
    assert answer.session == SESSION
    assert joined.hear(1.0, Welcome(1)) == [Stop("lost")], "only what the hub has not heard"
    assert joined.phase is Phase.JOINED


def test_a_host_that_has_not_joined_does_not_return(fresh):
    fresh.connection_gone()
    assert fresh.phase is Phase.REACHING
    fresh.hear(0.0, Nonce("n"))
    fresh.connection_gone()
    assert fresh.phase is Phase.GREETED


def test_only_a_host_that_has_joined_wants_another_connection(fresh):
    fresh.hear(0.0, Nonce("n"))
    assert not fresh.wants_another(60.0), "the hub may still look up the host's name"
    fresh.hear(60.0, Welcome(0))
    assert not fresh.wants_another(60.0 + SILENCE_S - 0.1)
    assert fresh.wants_another(60.0 + SILENCE_S)
    fresh.connection_gone()
    assert fresh.wants_another(60.0 + SILENCE_S)


def test_the_first_line_of_a_connection_is_a_nonce(joined):
    joined.check(Heartbeat(), first=False)
    joined.check(Nonce("n"), first=True)
    with pytest.raises(ValueError, match="no nonce"):
        joined.check(Heartbeat(), first=True)
    other = Handshake(0.0, Applicant(Hello("algo-2", {}), TOKEN), SESSION, SILENCE_S)
    with pytest.raises(ValueError, match="no nonce"):
        other.check(Welcome(0), first=False)


def test_a_hub_that_claims_to_have_heard_more_than_was_said_is_none(joined):
    with pytest.raises(ValueError, match="heard 3 messages of 0"):
        joined.hear(0.0, Welcome(3))


def test_only_a_heartbeat_says_that_a_host_is_unheard():
    assert unheard(Heartbeat(unheard=True))
    assert not unheard(Heartbeat())
    assert not unheard(STOP)
