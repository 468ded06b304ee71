"""Several hosts that each lead the job by their own files: one verdict, in whatever order they start and speak."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.control.failures.failure import Failure
from algorun.control.hub.hub import Hub
from algorun.control.hub.rivals import Looks
from algorun.control.wire.messages import End, Heartbeat, Hello, Verdict
from algorun.job.limits import Limits
from tests.conftest import examples


def hello(host: str, hosts: list[str]) -> Hello:
    return Hello(host, {"hosts": ",".join(hosts), "version": "1"})


class Leaders:
    """Hubs that ask each other as the lookouts do, a question and its answer at a time, in an order of its own."""

    def __init__(self, lists: dict[str, list[str]], seed: int) -> None:
        self.random = random.Random(seed)
        self.lists, self.hubs = lists, {}
        self.asking: dict[str, list[str]] = {}  # whom a leader's look has still to ask
        self.answered: dict[str, set[str]] = {host: set() for host in lists}
        self.verdicts: dict[str, list[Verdict]] = {host: [] for host in lists}

    def start(self, host: str) -> None:
        hub = self.hubs[host] = Hub(0.0, self.lists[host], Limits())
        hub.hello(0.0, hello(host, self.lists[host]))
        self.look(host)

    def look(self, host: str) -> None:
        if host not in self.asking and self.hubs[host].missing:
            self.asking[host] = [other for other in sorted(self.hubs[host].missing) if other not in self.answered[host]]

    def deliver(self, sends: list, by: str) -> None:
        for host, message in sends:
            if isinstance(message, End):
                verdict = message.verdict
                self.verdicts[host].append(verdict)
                if host != by:
                    self.deliver(self.hubs[host].ended_by_rival(0.0, by, verdict), host)
                    self.hubs[by].bye(0.0, host, self.hubs[host].gate.hellos)

    def step(self) -> bool:
        """One leader asks the next host of its look, or draws the conclusion of it."""
        if not self.asking:
            return False
        host = self.random.choice(sorted(self.asking))
        if self.asking[host]:
            other = self.asking[host].pop(0)
            if other in self.hubs:
                sends = self.hubs[other].hello(0.0, hello(host, self.lists[host]))
                assert isinstance(sends[0][1], (Heartbeat, End))
                if isinstance(sends[0][1], Heartbeat):
                    self.answered[host].add(other)
                self.deliver(sends, other)
                if self.hubs[other].rivals:
                    self.look(other)
        else:
            del self.asking[host]
            self.deliver(self.hubs[host].rivals_asked(0.0, self.answered[host]), host)
        return True


@examples(500)
@given(
    count=st.integers(2, 6), seed=st.integers(0, 100_000), early=st.lists(st.integers(0, 30), min_size=6, max_size=6)
)
def test_leaders_that_start_at_any_time_agree_on_one_verdict(count, seed, early):
    """Each host lists itself first."""
    hosts = [f"algo-{number}" for number in range(1, count + 1)]
    leaders = Leaders({host: [host, *(other for other in hosts if other != host)] for host in hosts}, seed)
    order = hosts[:]
    leaders.random.shuffle(order)
    for host, steps in zip(order, early, strict=False):
        leaders.start(host)
        for _ in range(steps):
            leaders.step()
    for _ in range(3):  # the next look of each
        for host in hosts:
            leaders.look(host)
        while leaders.step():
            pass
    ends = [leaders.hubs[host].verdict for host in hosts]
    assert len(set(ends)) == 1
    assert ends[0] is not None
    assert ends[0].code == 64
    assert "hosts differs: " in ends[0].failure.message
    assert all({ends[0]} == set(leaders.verdicts[host]) for host in hosts)
    assert [host for host in hosts if not leaders.hubs[host].finished] == []  # nobody waits for one that knows


def test_the_first_name_judges_and_the_other_waits():
    hubs = {host: Hub(0.0, hosts, Limits()) for host, hosts in (("a", ["a", "b"]), ("b", ["b", "a"]))}
    for host, hub in hubs.items():
        hub.hello(0.0, hello(host, ["a", "b"] if host == "a" else ["b", "a"]))
    assert hubs["b"].hello(1.0, hello("a", ["a", "b"])) == [("a", Heartbeat())]
    assert hubs["b"].rivals_asked(1.1, {"a"}) == []
    assert hubs["a"].rivals_asked(1.1, {"b"}) == []  # it has not said hello here: there would be nothing to compare
    assert hubs["a"].hello(1.2, hello("b", ["b", "a"])) == [("b", Heartbeat())]
    sends = hubs["a"].rivals_asked(1.3, {"b"})
    assert sorted(host for host, _ in sends) == ["a", "b"]
    verdict = sends[0][1].verdict
    assert verdict.failure.headline() == "mismatch: b, exit 64: hosts differs: a,b on a, b,a on b"
    assert [host for host, _ in hubs["b"].ended_by_rival(1.4, "a", verdict)] == ["b", "a"]
    assert hubs["a"].verdict == hubs["b"].verdict


def test_a_leader_tells_whom_it_has_told_so_that_nobody_waits_for_them():
    hub = Hub(0.0, ["a", "b", "c"], Limits())
    hub.hello(0.0, hello("a", ["a", "b", "c"]))
    hub.hello(1.0, hello("c", ["c", "a", "b"]))
    assert hub.rivals_asked(1.1, set())
    assert not hub.finished
    hub.bye(1.2, "c", ["c", "b"])
    assert hub.finished


def test_a_leader_that_was_told_waits_for_late_hosts_that_nobody_else_has_told():
    hub = Hub(0.0, ["c", "a", "b"], Limits())
    hub.hello(0.0, hello("c", ["c", "a", "b"]))
    hub.hello(1.0, hello("a", ["a", "c", "b"]))
    verdict = Verdict("failed", 64, Failure("mismatch", "c", 64, "hosts differs: .."))
    assert [host for host, _ in hub.ended_by_rival(1.0, "a", verdict)] == ["c", "a"]
    hub.bye(1.1, "a", ["a", "c"])
    assert not hub.finished
    ((host, message),) = hub.hello(3.0, hello("b", ["c", "a", "b"]))
    assert (host, message.verdict) == ("b", verdict)
    hub.bye(3.1, "b")
    assert hub.finished


def test_the_first_name_judges_by_the_hello_of_a_leader_that_does_not_answer():
    hub = Hub(0.0, ["algo-1", "algo-2"], Limits())
    hub.hello(0.0, hello("algo-1", ["algo-1", "algo-2"]))
    hub.hello(1.0, hello("algo-2", ["algo-2", "algo-1"]))
    assert [(host, type(message)) for host, message in hub.rivals_asked(1.1, set())] == [
        ("algo-1", End),
        ("algo-2", End),
    ]
    assert hub.verdict.failure.headline().startswith("mismatch: algo-2, exit 64: hosts differs: ")


def test_a_rival_that_has_gone_is_not_judged():
    hub = Hub(0.0, ["a", "b"], Limits())
    hub.hello(0.0, hello("a", ["a", "b"]))
    hub.hello(1.0, hello("b", ["b", "a"]))
    hub.lost(1.1, "b", "connection closed")
    assert hub.rivals_asked(1.2, set()) == []
    assert hub.verdict is None


@pytest.mark.parametrize("verdict", [Verdict("ok", 0), Verdict("stopped", 0, None, "a stranger")])
def test_what_answers_for_a_missing_host_cannot_end_a_job_well(verdict):
    hub = Hub(0.0, ["a", "b"], Limits())
    hub.hello(0.0, hello("a", ["a", "b"]))
    assert hub.ended_by_rival(1.0, "b", verdict) == []
    assert hub.verdict is None


def test_a_look_is_over_once_every_host_has_answered_or_cannot():
    looks = Looks()
    looks.begin(["algo-2", "algo-3", "algo-4"])
    looks.unreachable("algo-2")
    looks.leads("algo-3")
    assert not looks.complete
    looks.gone("algo-4")
    assert looks.complete
    looks.unreachable("algo-3")
    assert looks.answered == {"algo-3"}, "it has answered over a connection that is still there"
    looks.gone("algo-3")
    assert not looks.answered, "its connection has ended: it no longer waits for a verdict"


def test_looks_become_rarer():
    looks, pauses = Looks(), []
    for _ in range(8):
        pauses.append(looks.pause_s)
        looks.begin([])
        assert looks.complete
    assert pauses == [1.5, 3.0, 6.0, 12.0, 24.0, 48.0, 60.0, 60.0]
