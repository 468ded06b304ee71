"""A job on which all hosts are silent: who looks, when it ends, and when it only warns."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from algorun.control.hang.hang import Stack, StackFrame
from algorun.control.hang.host_look import HostLook
from algorun.control.hub.silent_hosts import SilentHosts
from algorun.control.wire.messages import ANSWER_S, Looked, RanksSilent
from algorun.job.limits import Limits
from tests.conftest import examples
from tests.launcher.jobs import LIMITS, TIME_OUT, Job, finish, running

# A short limit of silence, and rare heartbeats: a test passes many limits, second by second.
QUICK = Limits(hang_s=20.0, heartbeat_s=9.0, heartbeat_timeout_s=60.0)
NONE_WORKS = (
    "no sign of progress for 600 s: step at train.py:17 while 5 others wait in all_reduce (distributed_c10d.py:9)"
)


def silent(job: Job, *hosts: str, idle_s: float = 600.0) -> None:
    for host in hosts or job.hosts:
        job.act(host, job.members[host].silent(idle_s))


def test_where_all_ranks_stand_the_odd_one_is_named_on_every_host():
    job = running(3)
    silent(job)
    job.settle()
    (failure,) = {verdict.failure for verdict in job.verdicts.values()}
    assert failure.headline() == f"hang: rank 5 on algo-3, exit 67, attempt 1, step 41: {NONE_WORKS}"
    assert set(job.looks.values()) == {1}


IN_RAY = StackFrame("/site-packages/ray/_private/worker.py", 1007, "get_objects")


@pytest.mark.parametrize("waits", [True, False])
def test_the_worker_for_which_a_driver_waits_is_named_on_every_host(waits):
    job = running(2)
    driver = StackFrame("/job/driver.py", 9, "<module>")
    job.frames = (IN_RAY, driver) if waits else (driver,)
    job.workers = {"algo-2": {"ray::Trainer.step": [Stack(7, "", 0, (StackFrame("/job/train.py", 5, "stuck"),))]}}
    silent(job)
    job.settle()
    (failure,) = {verdict.failure for verdict in job.verdicts.values()}
    named = failure.message.endswith("; ray::Trainer.step on algo-2: stuck at train.py:5")
    assert named == waits, failure.message


def test_one_host_that_goes_on_keeps_the_job_alive():
    job = running(3, limits=QUICK)
    silent(job, "algo-1", "algo-3")
    job.settle()
    job.pass_time(10 * QUICK.hang_s)
    assert not job.verdicts
    assert set(job.looks.values()) == {0}


def test_a_part_that_stands_is_a_warning_once_and_the_end_of_the_rest_is_noticed():
    job = running(2, limits=QUICK)
    job.works = {3: "computes"}
    silent(job)
    job.settle()
    job.pass_time(3 * QUICK.hang_s + 1)
    assert job.notices == [
        "no sign of progress for 600 s: ranks 0, 1, 2 stand still, but rank 3 computes; the job goes on"
    ]
    assert job.looks == {"algo-1": 4, "algo-2": 4}, "again after each further limit"
    assert not job.verdicts
    job.works = {}
    job.pass_time(QUICK.hang_s)
    assert {verdict.code for verdict in job.verdicts.values()} == {67}


def test_where_all_work_nothing_is_said():
    job = running(2, limits=QUICK)
    job.works = dict.fromkeys(range(4), "reads or writes")
    silent(job)
    job.settle()
    job.pass_time(5 * QUICK.hang_s)
    assert (job.notices, job.verdicts) == ([], {})


def test_a_host_that_goes_on_while_others_are_asked_voids_the_question():
    job = running(2, limits=QUICK)
    job.mute.add("algo-2")
    silent(job)
    job.settle()
    silent(job, "algo-1", idle_s=0.0)
    job.mute.clear()
    job.act("algo-2", job.members["algo-2"].looked(HostLook((2, 3))))
    job.settle()
    job.pass_time(5 * QUICK.hang_s)
    assert not job.verdicts
    silent(job, "algo-1")
    job.settle()
    assert {verdict.code for verdict in job.verdicts.values()} == {67}


def test_a_host_that_does_not_answer_leaves_the_question_open():
    job = running(2, limits=QUICK)
    job.mute.add("algo-2")
    silent(job)
    job.settle()
    job.pass_time(2 * QUICK.hang_s + 1)
    assert not job.verdicts
    assert job.looks["algo-1"] == 3
    job.mute.clear()
    job.pass_time(QUICK.hang_s)
    assert {verdict.code for verdict in job.verdicts.values()} == {67}


def test_hosts_whose_ranks_have_ended_are_not_waited_for():
    job = running(2, limits=QUICK)
    finish(job, "algo-2")
    silent(job, "algo-1")
    job.settle()
    assert {verdict.code for verdict in job.verdicts.values()} == {67}


def test_a_stop_ends_the_watch():
    job = running(2, limits=QUICK)
    job.act("algo-2", job.members["algo-2"].stop_asked(job.now, "SIGTERM on algo-2"))
    silent(job)
    job.settle()
    assert set(job.looks.values()) == {0}
    for host in job.hosts:
        finish(job, host)
    job.settle()
    assert {verdict.kind for verdict in job.verdicts.values()} == {"stopped"}


def test_a_hang_of_silent_ranks_is_followed_by_another_attempt():
    job = running(2, restarts=1, limits=QUICK)
    silent(job)
    job.settle()
    assert job.begun == {"algo-1": [0, 1], "algo-2": [0, 1]}
    assert not job.verdicts
    silent(job)
    job.settle()
    assert {verdict.failure.kind for verdict in job.verdicts.values()} == {"budget"}


def test_what_an_earlier_attempt_has_said_does_not_count():
    job = running(2, restarts=1, limits=QUICK)
    job.act("algo-2", job.members["algo-2"].rank_exited(job.now, 0, 3))
    job.settle()
    job.pass_time(LIMITS.blame_s + 0.1)
    assert job.begun["algo-1"] == [0, 1]
    for host in job.hosts:
        job.hear(host, RanksSilent(0, 600.0))
        job.hear(host, Looked(0, HostLook((0, 1))))
    job.settle()
    assert set(job.looks.values()) == {0}


def test_a_failure_that_is_judged_goes_first():
    job = running(2, limits=QUICK)
    job.act("algo-2", job.members["algo-2"].rank_exited(job.now, 0, 1, TIME_OUT))
    silent(job)
    job.settle()
    assert set(job.looks.values()) == {0}
    job.pass_time(60)
    assert len(job.verdicts) == 2


@pytest.mark.parametrize("limit_s", [600.0, 3.0])
def test_the_pause_is_not_longer_than_the_limit(limit_s):
    hosts = SilentHosts(limit_s)
    assert hosts.deadline(["algo-1"]) == math.inf
    hosts.heard(1000.0, "algo-1", limit_s)
    question = hosts.due(1000.0, ["algo-1"])
    assert question is not None
    assert question.pause_s == min(10.0, limit_s)
    assert hosts.due(1000.1, ["algo-1"]) is None, "nobody is asked twice at a time"


@examples(300)
@example(count=1, seed=0, events=[("silent", 0), ("deliver", 0), ("deliver", 0), ("mute", 0)])
@example(count=2, seed=0, events=[("silent", 0), ("silent", 1), ("deliver", 0), ("goes on", 0), ("wait", 0)])
@given(
    count=st.integers(1, 4),
    seed=st.integers(0, 10_000),
    events=st.lists(
        st.tuples(
            st.sampled_from(["silent", "goes on", "work", "stand", "mute", "unmute", "wait", "deliver"]),
            st.integers(0, 3),
        ),
        max_size=25,
    ),
)
def test_the_job_ends_exactly_where_all_of_it_stands(count, seed, events):
    """Whatever the order of events: no verdict while a host goes on or works, and one in the end where all stand."""
    job = running(count, seed, limits=QUICK)
    quiet: set[str] = set()  # as the hosts have said it last
    for kind, index in events:
        host = job.hosts[index % count]
        rank = 2 * job.hosts.index(host)
        if job.verdicts:
            break
        if kind in ("silent", "goes on"):
            (quiet.add if kind == "silent" else quiet.discard)(host)
            job.happen(kind, host, 0.0)
        elif kind == "work":
            job.works[rank] = "computes"
        elif kind == "stand":
            job.works.pop(rank, None)
        elif kind in ("mute", "unmute"):
            (job.mute.add if kind == "mute" else job.mute.discard)(host)
        elif kind == "wait":
            before = set(quiet), dict(job.works), set(job.mute)
            job.settle()
            job.pass_time(QUICK.hang_s + 20)
            if job.verdicts and not any(before[1].values()):
                assert before[0] >= set(job.hosts), "a host went on"
        else:
            job.happen("deliver", host, 0.0)
    job.settle()
    job.mute.clear()
    job.pass_time(ANSWER_S + 1)  # a question that is under way has its answer, or its deadline
    for verdict in job.verdicts.values():
        assert (verdict.kind, verdict.code) == ("failed", 67)
    if job.verdicts:
        return
    job.works = {0: "computes"}
    asked = dict(job.looks)
    for host in job.hosts:
        job.happen("silent", host, 0.0)
    job.settle()
    job.pass_time(2 * QUICK.hang_s + 40)
    assert not job.verdicts, "rank 0 works"
    assert all(job.looks[host] > asked[host] for host in job.hosts)
    job.works = {}
    job.pass_time(2 * QUICK.hang_s + 40)
    assert {verdict.code for verdict in job.verdicts.values()} == {67}
