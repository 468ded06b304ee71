"""A reset of a connection between two living hosts costs the job nothing; one that nobody comes back from is a lost host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from algorun.control.failures.failure import Failure
from algorun.control.host_loss import RESET_S
from algorun.control.wire.messages import DaemonEnded, Fail, Go, StartDaemon, Stop, Welcome
from algorun.network import link as links

from .pair import Pair, at_once

ONE_SIDE = ("host", "hub", "both")


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def reset(pair: Pair, side: str) -> None:
    """Resets the connection in use for one side: the other one hears nothing, until it sends something."""
    near, far = pair.relay.sockets[-2:]
    for sock in {"host": (near,), "hub": (far,), "both": (near, far)}[side]:
        pair.loop.forget(sock)
        at_once(sock)
        pair.relay.sockets.remove(sock)
    for sock in (near, far):
        pair.loop.forget(sock)


@pytest.mark.parametrize("side", ONE_SIDE)
def test_both_go_on_after_a_reset_and_nothing_is_lost(side, pair):
    pair.run()
    for number in range(3):
        reset(pair, side)
        pair.server.send(StartDaemon(str(number), "algo-2", "x"))
        pair.link.send(DaemonEnded(str(number), number))
        pair.until(lambda: pair.kinds().count(StartDaemon) == number + 1)  # noqa: B023 - asked at once
        pair.until(lambda: sum(isinstance(each, DaemonEnded) for each in pair.leader.heard) == number + 1)  # noqa: B023
    assert [each.id for each in pair.follower.heard if isinstance(each, StartDaemon)] == ["0", "1", "2"]
    assert [each.id for each in pair.leader.heard if isinstance(each, DaemonEnded)] == ["0", "1", "2"]
    assert (pair.follower.lost, pair.hub.verdict, pair.hub.departed) == ([], None, set())
    begin = pair.loop.now()
    pair.until(lambda: pair.loop.now() > begin + RESET_S + 0.2)  # no wait for the host is left over
    assert (pair.follower.lost, pair.hub.verdict, pair.hub.departed) == ([], None, set())


@pytest.mark.parametrize("side", ["host", "both"])
def test_a_reset_before_the_welcome_costs_nothing(side, pair):
    seen = []

    def at_hello(who: str, connection: int, number: int, line: bytes) -> list[bytes]:
        if who == "host" and number == 0 and not seen:
            seen.append(line)
            pair.loop.post(lambda: reset(pair, side))
        return [line]

    pair.relay.meddle = at_hello
    pair.run()
    assert seen
    assert pair.kinds()[-1] is Go
    assert (pair.follower.lost, pair.hub.verdict) == ([], None)


def test_who_does_not_come_back_is_lost_within_two_seconds_on_both_sides(pair):
    """A kernel that resets a connection may have done so because the process was killed with unread bytes."""
    pair.run()
    pair.relay.shut()
    begin = pair.loop.now()
    pair.relay.reset()
    pair.until(lambda: pair.hub.verdict is not None)
    took_s = pair.loop.now() - begin
    failure = pair.hub.verdict.failure
    assert (failure.kind, failure.host) == ("lost", "algo-2")
    assert failure.message == f"host lost: connection reset, and no other connection within {RESET_S:g} s"
    assert RESET_S <= took_s < RESET_S + 10, took_s  # on a busy machine; the fault table has the bound
    pair.until(lambda: pair.follower.lost)
    assert pair.follower.lost == [f"hub lost: connection reset, and no other connection within {RESET_S:g} s"]


def test_failures_that_the_loss_of_a_host_has_caused_wait_until_it_is_certain(pair):
    """Its peers fail at once. Before the host counts as lost, nothing is judged."""
    pair.run()
    pair.relay.shut()
    pair.relay.reset()
    pair.until(lambda: pair.hub._loss.awaits)
    pair.server.send(Fail(Failure("exception", "algo-1", 1, "RuntimeError: something odd about a peer", rank=0)))
    pair.until(lambda: pair.hub.verdict is not None)
    assert pair.hub.verdict.failure.kind == "lost"
    assert "something odd about a peer" in pair.hub.verdict.failure.others


def test_a_failure_is_judged_once_the_host_is_back(pair):
    pair.run()
    pair.relay.reset()
    pair.server.send(Fail(Failure("exception", "algo-1", 1, "ValueError: bad batch 17", rank=0)))
    pair.until(lambda: pair.hub.verdict is not None)
    assert pair.hub.verdict.failure.message == "ValueError: bad batch 17"
    pair.until(lambda: pair.kinds().count(Welcome) == 2)


def test_the_stop_of_a_host_that_is_reset_arrives(pair):
    pair.run()
    reset(pair, "both")
    pair.link.send(Stop("SIGTERM on algo-2"))
    pair.until(lambda: any(isinstance(each, Stop) for each in pair.leader.heard))
    assert not pair.follower.lost


def test_the_limits_of_both_sides_are_the_same():
    assert links.RESET_S == RESET_S == 2.0
