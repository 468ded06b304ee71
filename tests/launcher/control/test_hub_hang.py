"""A hang: who is asked, who is blamed, and what comes before it."""

from __future__ import annotations

import pytest

from algorun.common.fast_dataclasses import replace
from algorun.control.hub.inquiry import ANSWER_S
from tests.launcher.jobs import LIMITS, Job, finish, running


def hangs(job: Job, host: str, idle_s: float = 600.0) -> None:
    job.act(host, job.members[host].hangs(job.now, idle_s))


def test_the_odd_rank_is_blamed_on_every_host():
    job = running(3)
    for host in job.hosts:
        hangs(job, host)
    job.settle()
    (failure,) = {verdict.failure for verdict in job.verdicts.values()}
    assert failure.headline() == (
        "hang: rank 5 on algo-3, exit 67, attempt 1, step 41: no step for 600 s after step 41: step at train.py:17"
        " while 5 others wait in all_reduce (distributed_c10d.py:9)"
    )
    assert 'File "/opt/ml/code/train.py", line 17, in step' in failure.traceback


def test_a_host_says_it_again_once_the_time_has_doubled():
    job = running(2)
    assert len(job.members["algo-2"].hangs(job.now, 600.0)) == 1
    assert job.members["algo-2"].hangs(job.now + 300, 901.0) == []
    assert len(job.members["algo-2"].hangs(job.now + 600, 1200.0)) == 1


def going_on(job: Job, quiet_s: dict[int, float]) -> None:
    """These ranks have shown a step or a sign of life so many seconds ago, all others before they stood still."""
    stacks = job.stacks
    job.stacks = lambda host: [replace(stack, quiet_s=quiet_s.get(stack.rank, 605.0)) for stack in stacks(host)]


def test_a_rank_that_goes_on_alone_is_no_hang_until_it_stands():
    job = running(2)
    going_on(job, {3: 5.0})
    for host in job.hosts:
        hangs(job, host)
        job.settle()
    assert not job.verdicts
    hangs(job, "algo-1", 640.0)  # too early for both
    going_on(job, {})
    job.settle()
    assert not job.verdicts
    job.pass_time(600)
    hangs(job, "algo-2", 1200.0)
    job.settle()
    assert {verdict.failure.rank for verdict in job.verdicts.values()} == {3}


@pytest.mark.parametrize("quiet_s", [{3: 400.0}, {0: 1.0}], ids=["a little after the others", "another rank"])
def test_what_is_no_sign_of_the_rank_that_is_waited_for(quiet_s):
    job = running(2)
    going_on(job, quiet_s)
    hangs(job, "algo-1")
    job.settle()
    assert {verdict.failure.rank for verdict in job.verdicts.values()} == {3}


def test_a_failure_while_a_rank_goes_on_alone_is_judged():
    job = running(2)
    going_on(job, {3: 5.0})
    job.mute.add("algo-1")
    hangs(job, "algo-1")
    job.settle()
    job.act("algo-2", job.members["algo-2"].rank_exited(job.now, 0, 3))
    job.settle()
    job.pass_time(ANSWER_S + 0.1)
    assert {(verdict.failure.kind, verdict.failure.rank) for verdict in job.verdicts.values()} == {("exit", 2)}


@pytest.mark.parametrize("mute", [("algo-2",), ("algo-1", "algo-2")])
def test_a_host_that_does_not_answer_is_not_waited_for(mute):
    job = running(2)
    job.mute.update(mute)
    hangs(job, "algo-1")
    job.settle()
    assert not job.verdicts
    job.pass_time(ANSWER_S + 0.1)
    assert {verdict.code for verdict in job.verdicts.values()} == {67}


def test_a_hang_is_followed_by_another_attempt():
    job = running(2, restarts=1)
    hangs(job, "algo-1")
    job.settle()
    assert job.begun == {"algo-1": [0, 1], "algo-2": [0, 1]}
    hangs(job, "algo-2")
    job.settle()
    assert {v.failure.kind for v in job.verdicts.values()} == {"budget"}


def test_a_failure_while_hosts_are_asked_is_weighed_by_its_time():
    """It came after the hang had begun: the hang is the cause."""
    job = running(2)
    job.mute.add("algo-1")
    hangs(job, "algo-1", idle_s=30.0)
    job.settle()
    job.act("algo-2", job.members["algo-2"].rank_exited(job.now, 0, 3))
    job.settle()
    job.pass_time(ANSWER_S + 0.1)
    (failure,) = {verdict.failure for verdict in job.verdicts.values()}
    assert failure.kind == "hang"
    assert len(set(job.verdicts.values())) == 1


def test_a_stop_ends_the_questions():
    job = running(2)
    job.mute.add("algo-1")
    hangs(job, "algo-1")
    job.settle()
    job.act("algo-2", job.members["algo-2"].stop_asked(job.now, "SIGTERM on algo-2"))
    job.settle()
    job.pass_time(ANSWER_S + 1)
    assert not job.verdicts
    for host in job.hosts:
        finish(job, host)
    job.settle()
    assert {v.kind for v in job.verdicts.values()} == {"stopped"}


def test_a_stopping_job_does_not_hang():
    job = running(2)
    job.act("algo-2", job.members["algo-2"].stop_asked(job.now, "SIGTERM on algo-2"))
    hangs(job, "algo-2")
    job.settle()
    assert not job.verdicts
    job.pass_time(LIMITS.grace_s)
    assert all(signals == [15, 9] for signals in job.signals.values())
