"""The gate: who comes, who is ready, who is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.fast_dataclasses import replace
from algorun.control.failures.failure import Failure
from algorun.control.hub.gate import Gate
from algorun.control.hub.hub import HubState
from algorun.control.member.actions import Conclude
from algorun.control.member.member import Member, MemberState
from algorun.control.wire.messages import Ready, Refuse
from tests.conftest import examples
from tests.launcher.jobs import LIMITS, Job, hello


def test_the_gate_names_who_is_missing():
    job = Job(3)
    job.join("algo-1")
    job.join("algo-3")
    job.settle()
    job.pass_time(LIMITS.gate_s + 0.1)
    verdict = job.verdicts["algo-1"]
    assert (verdict.kind, verdict.code) == ("failed", 65)
    assert "algo-2" in verdict.failure.message
    assert job.verdicts["algo-3"] == verdict


def test_every_host_hears_the_ports_of_the_others():
    gate = Gate(0.0, ("algo-1", "algo-2", "algo-3"), LIMITS)
    for host, tf_port in (("algo-3", 3000), ("algo-1", 0), ("algo-2", 2000)):
        leads = {"master_addr": host, "master_port": 1, "engine_port": 2, "jax_port": 3} if host == "algo-1" else {}
        gate.is_ready(0.0, host, Ready(1, {}, tf_port=tf_port, **leads))
    go = gate.go(1)
    assert (go.master_addr, go.master_port, go.engine_port, go.jax_port) == ("algo-1", 1, 2, 3)
    assert go.tf_ports == {"algo-2": 2000, "algo-3": 3000}, "algo-1 stands alone"


def test_a_mismatch_names_the_key_and_both_values():
    job = Job(2)
    job.join("algo-1", image="aaa")
    job.join("algo-2", image="bbb")
    job.settle()
    assert {v.code for v in job.verdicts.values()} == {64}
    assert "image differs: aaa on algo-1, bbb on algo-2" in job.verdicts["algo-2"].failure.message
    assert job.verdicts["algo-1"] == job.verdicts["algo-2"]


def test_another_program_is_named_whoever_is_ready_first():
    for order in (("algo-1", "algo-2", "algo-3"), ("algo-3", "algo-2", "algo-1")):
        job = Job(3)
        for host in job.hosts:
            job.arrive(host)
        for host in order:
            job.get_ready(host, program="b" if host == "algo-2" else "a")
            job.settle()
        assert {v.code for v in job.verdicts.values()} == {64}
        assert "program differs: a on algo-1, b on algo-2" in job.verdicts["algo-3"].failure.message


def test_a_host_that_cannot_get_ready_ends_the_job_with_its_reason():
    job = Job(3)
    for host in job.hosts:
        job.arrive(host)
    job.get_ready("algo-1")
    job.act("algo-2", job.members["algo-2"].broken(job.now, Failure("setup", "algo-2", 64, "pip failed")))
    job.settle()
    assert [job.verdicts[host].failure.headline() for host in job.hosts] == ["setup: algo-2, exit 64: pip failed"] * 3


def test_hosts_may_prepare_for_longer_than_the_gate_waits():
    job = Job(2)
    for host in job.hosts:
        job.arrive(host)
    job.get_ready("algo-1")
    job.pass_time(LIMITS.gate_s * 2)
    assert not job.verdicts
    job.get_ready("algo-2")
    job.settle()
    assert all(member.state is MemberState.RUN for member in job.members.values())


def test_an_endless_preparation_is_ended_and_named():
    job = Job(2)
    for host in job.hosts:
        job.arrive(host)
    job.get_ready("algo-1")
    job.pass_time(LIMITS.prepare_s + 1)
    assert {v.failure.headline() for v in job.verdicts.values()} == {
        "setup: algo-2, exit 65: not ready after 1800 s (ALGORUN_PREPARE_S)"
    }
    assert 9 in job.signals["algo-2"]


def test_a_silent_host_at_the_gate_is_named_by_the_hub():
    """Its supervisor lives and beats, but never gets ready: the hub's own limit ends the job."""
    job = Job(2)
    job.join("algo-1")
    job.members["algo-2"].heard(job.now)
    job.send(job.hub.hello(job.now, hello("algo-2")))
    job.pass_time(LIMITS.gate_s + LIMITS.prepare_s + 5)
    assert {v.failure.message for v in job.verdicts.values()} == {"hosts not ready after 2400 s: algo-2"}


# Shorter waits than a real job's: what is tried is their order, and every second of them costs heartbeats.
QUICK = replace(LIMITS, gate_s=60.0, prepare_s=180.0)


@examples(300)
@given(
    count=st.integers(1, 4),
    seed=st.integers(0, 10_000),
    events=st.lists(
        st.tuples(
            st.sampled_from(["arrive", "ready", "broken", "kill", "stop", "wait", "deliver"]),
            st.integers(0, 3),
            st.sampled_from([0.0, 0.5, 11.0, 70.0, 200.0]),
        ),
        max_size=14,
    ),
)
def test_whatever_happens_at_the_gate_every_living_host_gets_one_and_the_same_verdict(count, seed, events):
    job = Job(count, seed, limits=QUICK)
    came: set[str] = set()
    for kind, index, seconds in [("arrive", 0, 0.0), *events]:
        host = job.hosts[index % count]
        if host in job.dead:
            continue
        if kind == "arrive" and host not in came and host not in job.verdicts:
            came.add(host)
            job.arrive(host)
        elif kind == "wait":
            job.pass_time(seconds)
        elif kind == "deliver":
            job.step()
        elif host in came and kind == "ready":
            job.get_ready(host)
        elif host in came and kind == "broken":
            job.act(host, job.members[host].broken(job.now, Failure("setup", host, 64, "no code")))
        elif host in came and kind == "stop":
            job.act(host, job.members[host].stop_asked(job.now, f"SIGTERM on {host}"))
        elif host in came and kind == "kill":
            job.kill(host)
        if "algo-1" in job.dead:
            break
    job.settle()
    job.pass_time(QUICK.gate_s + 3 * QUICK.prepare_s)
    if all(job.members[host].state is MemberState.RUN for host in job.hosts if host not in job.dead):
        return  # all were ready: the job runs
    living = [host for host in job.hosts if host not in job.dead and host in came]
    assert set(living) <= set(job.verdicts)
    if "algo-1" not in job.dead:
        assert len({job.verdicts[host] for host in living}) <= 1
        assert job.hub.finished


@pytest.mark.parametrize(("host", "why"), [("algo-9", "not one of the job's hosts"), ("algo-2", "said hello already")])
def test_strangers_and_doubles_are_refused_and_the_job_goes_on(host, why):
    job = Job(3)
    job.join("algo-1")
    job.join("algo-2")
    ((to, message),) = job.hub.hello(job.now, hello(host))
    assert to == host
    assert isinstance(message, Refuse)
    assert why in message.why
    job.join("algo-3")
    job.settle()
    assert job.hub.state is HubState.RUN


def test_a_host_that_comes_after_a_verdict_at_the_gate_hears_it():
    job = Job(3)
    job.join("algo-1", image="aaa")
    job.join("algo-2", image="bbb")
    job.settle()
    assert not job.hub.finished
    job.pass_time(3)
    job.join("algo-3", image="aaa")
    job.settle()
    assert job.verdicts["algo-3"] == job.verdicts["algo-1"]
    assert job.hub.finished


def test_the_gate_says_who_came_with_another_token():
    job = Job(3)
    job.join("algo-1")
    job.hub.gate.unproven("algo-2")
    job.hub.gate.unproven("algo-9")
    job.pass_time(LIMITS.gate_s + 0.1)
    message = job.verdicts["algo-1"].failure.message
    assert "missing after 600 s: algo-2, algo-3 (algo-2 came with another token" in message
    assert "algo-9" not in message


def test_a_host_that_never_reaches_the_hub_gives_up():
    member = Member(0.0, "algo-2", "algo-1", LIMITS)
    actions = member.tick(LIMITS.gate_s + LIMITS.leave_s + 1)
    assert [a.verdict.code for a in actions if isinstance(a, Conclude)] == [65]


def test_who_is_waited_for_is_told_after_some_seconds_and_then_rarely():
    job, told = Job(4), []
    job.join("algo-1")
    for host in ("algo-2", "algo-4"):
        job.arrive(host)
    job.settle()
    for _ in range(200):
        job.pass_time(1.0)
        told.append((job.now, job.hub.waits(job.now)))
    assert [each for each in told if each[1]] == [
        (10.0, "waiting for algo-3 (of 4 hosts)"),
        (70.0, "waiting for algo-3 (of 4 hosts)"),
        (190.0, "waiting for algo-3 (of 4 hosts)"),
    ]
    job.arrive("algo-3")
    job.pass_time(9.0)
    assert job.hub.waits(job.now) == ""
    job.pass_time(1.0)
    assert job.hub.waits(job.now) == "waiting for algo-2, algo-3, algo-4 to get ready (of 4 hosts)"
    for host in ("algo-2", "algo-3", "algo-4"):
        job.get_ready(host)
    job.settle()
    job.pass_time(500.0)
    assert job.hub.waits(job.now) == ""


def test_hosts_that_all_prepare_wait_for_nobody():
    job = Job(2)
    for host in job.hosts:
        job.arrive(host)
    job.pass_time(300.0)
    assert job.hub.waits(job.now) == ""
    job.get_ready("algo-2")
    job.settle()
    job.pass_time(9.0)
    assert job.hub.waits(job.now) == ""
    job.pass_time(2.0)
    assert job.hub.waits(job.now) == "waiting for algo-1 to get ready (of 2 hosts)"
