"""Restarts: when, how often, and what ends them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from algorun.control.failures.failure import Failure
from algorun.control.hub.hub import HubState
from algorun.control.member.member import MemberState
from algorun.control.wire.messages import Go, Stop
from tests.conftest import examples
from tests.launcher.jobs import LIMITS, Job, finish, running


def fail(job: Job, host: str, code: int = 3, tail: str = "") -> None:
    """The first rank of a host fails; what is under way arrives, and the blame window passes."""
    job.act(host, job.members[host].rank_exited(job.now, 0, code, tail))
    job.settle()
    job.pass_time(LIMITS.blame_s + 0.1)


def test_a_failure_is_followed_by_another_attempt_on_every_host():
    job = running(3, restarts=2)
    fail(job, "algo-2")
    assert not job.verdicts
    assert all(begun == [0, 1] for begun in job.begun.values())
    assert all(signals == [15] for signals in job.signals.values()), "the ranks of the first attempt are ended"
    for host in job.hosts:
        finish(job, host)
    job.settle()
    assert {(v.kind, v.code, v.why) for v in job.verdicts.values()} == {("ok", 0, "restarts=1")}


def test_the_last_failure_is_named_once_the_budget_is_spent():
    job = running(2, restarts=1)
    fail(job, "algo-2")
    fail(job, "algo-1", 7)
    (failure,) = {v.failure for v in job.verdicts.values()}
    assert (failure.kind, failure.code) == ("budget", 68)
    assert (
        "no restart is left (1 of 1 used); the last failure: exit: rank 0 on algo-1, exit 7, attempt 2/2"
        in failure.headline()
    )


def test_the_last_failure_is_named_with_its_line_once():
    job = running(2, restarts=1)
    tail = 'Traceback (most recent call last):\n  File "/code/train.py", line 4, in <module>\nValueError: bad record'
    fail(job, "algo-2")
    fail(job, "algo-1", 1, tail)
    (failure,) = {v.failure for v in job.verdicts.values()}
    assert failure.headline().endswith(", exit 1, attempt 2/2: ValueError: bad record (at /code/train.py:4)")
    assert failure.headline().count("train.py") == 1


def test_three_attempts_without_a_newer_checkpoint_are_the_last():
    job = running(2, restarts=100)
    for code in (3, 4, 5):
        fail(job, "algo-2", code)
    assert {v.code for v in job.verdicts.values()} == {68}
    assert "no newer checkpoint in 3 attempts" in job.verdicts["algo-1"].failure.message
    assert job.begun["algo-1"] == [0, 1, 2]


def test_a_newer_checkpoint_on_any_host_keeps_the_job_going():
    job = running(2, restarts=100)
    for number in range(1, 10):
        job.checkpoints["algo-2"] = float(number)
        fail(job, "algo-1")
    assert not job.verdicts
    assert job.begun["algo-2"] == list(range(10))


@pytest.mark.parametrize("kind", ["lost", "configuration", "mismatch", "setup", "preflight", "defect"])
def test_what_another_attempt_cannot_mend_ends_the_job(kind):
    job = running(2, restarts=5)
    job.send(job.hub.fail(job.now, Failure(kind, "algo-2", 64, "once and for all")))
    job.pass_time(LIMITS.blame_s + 0.1)
    assert {v.failure.kind for v in job.verdicts.values()} == {kind}


ECC = "uncorrectable ECC error encountered"


@pytest.mark.parametrize(
    ("code", "tail"),
    [
        (
            1,
            f"Traceback (most recent call last):\ntorch.AcceleratorError: CUDA error: {ECC}\nCUDA kernel errors might be ..\n",
        ),
        (
            -6,
            f"  what():  [PG ID 0 Rank 1] Process group watchdog thread terminated with exception: CUDA error: {ECC}\n",
        ),
        (1, f"torch.distributed.DistBackendError: NCCL error in: x.cpp:1\nLast error:\nCuda failure 214 '{ECC}'\n"),
    ],
)
def test_a_gpu_whose_memory_has_failed_is_tried_once_more(code, tail):
    job = running(2, restarts=5)
    fail(job, "algo-2", code, tail)
    assert not job.verdicts
    fail(job, "algo-2", code, tail)
    (failure,) = {v.failure for v in job.verdicts.values()}
    assert (failure.kind, failure.rank, failure.attempt) == ("signal" if code < 0 else "exit", 2, 1)
    assert failure.note == "no restart: GPU memory of rank 2 on algo-2 has failed twice"
    assert failure.note in failure.text()


def test_gpu_memory_of_one_rank_says_nothing_of_another_s():
    job = running(2, restarts=5)
    for host in ("algo-1", "algo-2"):
        fail(job, host, 1, f"CUDA error: {ECC}\n")
    assert not job.verdicts


def test_gpu_memory_that_fails_again_attempts_later_is_final_too():
    job = running(2, restarts=5)
    for number, tail in enumerate((f"CUDA error: {ECC}\n", "", f"CUDA error: {ECC}\n"), 1):
        assert not job.verdicts
        job.checkpoints["algo-2"] = float(number)
        fail(job, "algo-2", 1, tail)
    assert {v.failure.note for v in job.verdicts.values()} == {
        "no restart: GPU memory of rank 2 on algo-2 has failed twice"
    }


def test_a_lost_host_is_not_waited_for():
    job = running(3, restarts=5)
    job.kill("algo-3")
    job.pass_time(LIMITS.blame_s + 0.1)
    assert {(h, v.code) for h, v in job.verdicts.items()} == {("algo-1", 66), ("algo-2", 66)}


def test_a_stop_beats_a_restart():
    """It comes in the blame window: the failure decides, and no attempt follows."""
    job = running(2, restarts=5)
    job.act("algo-2", job.members["algo-2"].rank_exited(job.now, 0, 3))
    job.settle()
    job.act("algo-1", job.members["algo-1"].stop_asked(job.now, "SIGTERM on algo-1"))
    job.settle()
    job.pass_time(LIMITS.blame_s + LIMITS.grace_s)
    assert all(begun == [0] for begun in job.begun.values())
    assert len(set(job.verdicts.values())) == 1


def test_a_stop_while_hosts_get_ready_again_ends_the_job_with_0():
    job = running(2, restarts=5)
    job.act("algo-2", job.members["algo-2"].rank_exited(job.now, 0, 3))
    while job.hub.state is not HubState.RESTART:
        job.now += 0.1
        job.send(job.hub.tick(job.now))
        while job.to_hub["algo-2"]:
            job.hear("algo-2", job.to_hub["algo-2"].pop(0))
    job.act("algo-1", job.members["algo-1"].stop_asked(job.now, "SIGTERM on algo-1"))
    job.settle()
    job.pass_time(LIMITS.kill_s + 1)
    assert {(v.kind, v.code) for v in job.verdicts.values()} == {("stopped", 0)}


def test_a_host_that_does_not_get_ready_again_is_named():
    job = running(2, restarts=5)
    job.act("algo-1", job.members["algo-1"].rank_exited(job.now, 0, 3))
    job.get_ready = lambda host, **_: None  # its processes cannot be ended
    job.settle()
    job.pass_time(LIMITS.blame_s + LIMITS.kill_s + LIMITS.restart_s + 0.1)
    assert {v.code for v in job.verdicts.values()} == {3}
    assert "not ready again after 60 s: algo-1, algo-2" in job.verdicts["algo-2"].failure.note


def test_a_failure_that_was_under_way_when_the_attempt_ended_is_not_the_next_ones():
    job = running(2, restarts=5)
    job.act("algo-1", job.members["algo-1"].rank_exited(job.now, 0, 3))
    job.hear("algo-1", job.to_hub["algo-1"].pop())
    job.now += LIMITS.blame_s
    job.send(job.hub.tick(job.now))
    assert job.hub.state is HubState.RESTART
    job.act("algo-2", job.members["algo-2"].rank_exited(job.now, 0, 4))  # before it hears of the restart
    job.settle()
    job.pass_time(5)
    assert not job.verdicts
    assert job.begun == {"algo-1": [0, 1], "algo-2": [0, 1]}


@examples(400)
@example(count=2, seed=0, budget=0, events=[("hang", 0, 0.0), ("stop", 0, 0.0), ("deliver", 0, 0.0), ("kill", 1, 0.0)])
@example(count=2, seed=0, budget=0, events=[("hang", 0, 0.0), ("silent", 1, 0.0), ("reset", 1, 1.1)])
@given(
    count=st.integers(1, 4),
    seed=st.integers(0, 10_000),
    budget=st.integers(0, 3),
    events=st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "done",
                    "fail",
                    "leave",
                    "miss",
                    "time-out",
                    "hang",
                    "silent",
                    "goes on",
                    "kill",
                    "reset",
                    "stop",
                    "wait",
                    "deliver",
                    "save",
                ]
            ),
            st.integers(0, 3),
            st.sampled_from([0.0, 0.1, 0.9, 1.1, 5.0]),
        ),
        max_size=16,
    ),
)
def test_whatever_happens_attempts_are_common_and_there_is_one_verdict(count, seed, budget, events):
    job = running(count, seed, budget)
    stopped_at: dict[str, int] | None = None
    for kind, index, seconds in events:
        host = job.hosts[index % count]
        if host in job.dead:
            continue
        job.happen(kind, host, seconds)
        if job.hub.attempts.stop_reason and stopped_at is None:
            stopped_at = {name: len(job.begun[name]) for name in job.hosts}
        if "algo-1" in job.dead:
            break
    for _ in range(2 * budget + 2):  # whoever still runs, ends well
        for host in job.hosts:
            if host not in job.dead and job.members[host].state is MemberState.RUN:
                finish(job, host)
        job.settle()
        job.pass_time(LIMITS.blame_s + LIMITS.kill_s + 1)
    job.pass_time(LIMITS.gate_s + LIMITS.grace_s + LIMITS.restart_s)
    living = [host for host in job.hosts if host not in job.dead]
    assert set(living) <= set(job.verdicts), "every state has an exit"
    for begun in job.begun.values():
        assert begun == list(range(len(begun)))
        assert len(begun) <= budget + 1
    if "algo-1" not in job.dead:
        assert len({job.verdicts[host] for host in living}) <= 1
        assert job.hub.finished
    if stopped_at is not None:
        assert all(len(job.begun[host]) <= stopped_at[host] + (job.hub.attempts.number > 0) for host in job.hosts)
    for host in living:
        assert (job.verdicts[host].code == 0) == (job.verdicts[host].failure is None)


def test_a_failure_says_that_a_lost_host_forbids_the_restart_and_names_what_else_failed():
    job = running(3, restarts=3)
    job.act("algo-3", job.members["algo-3"].rank_exited(job.now, 0, 3))
    job.settle()
    job.kill("algo-2")
    job.pass_time(LIMITS.blame_s + 0.1)
    (failure,) = {v.failure for v in job.verdicts.values()}
    lines = failure.text().splitlines()
    assert lines[0] == "exit: rank 4 on algo-3, exit 3, attempt 1/4: no message on stderr"
    assert lines[1:] == [
        "no restart: algo-2 was lost",
        "also: lost: algo-2, exit 66: host lost: connection closed",
    ]


def test_a_failure_says_that_a_stop_forbids_the_restart():
    job = running(2, restarts=3)
    job.act("algo-2", job.members["algo-2"].rank_exited(job.now, 0, 3))
    job.settle()
    job.send(job.hub.stop(job.now, "SIGTERM on algo-1"))
    job.pass_time(LIMITS.blame_s + 0.1)
    (failure,) = {v.failure for v in job.verdicts.values()}
    assert failure.text().splitlines()[1:] == ["no restart: the job was told to stop (SIGTERM on algo-1)"]


def test_a_failure_that_nothing_forbids_to_try_again_says_nothing_of_it():
    job = running(2)
    job.act("algo-2", job.members["algo-2"].rank_exited(job.now, 0, 3))
    job.settle()
    job.pass_time(LIMITS.blame_s + 0.1)
    (failure,) = {v.failure for v in job.verdicts.values()}
    assert "restart" not in failure.text()


def test_what_ended_the_last_attempt_names_what_else_failed_in_it():
    job = running(2, restarts=1)
    fail(job, "algo-2")
    job.act("algo-1", job.members["algo-1"].rank_exited(job.now, 0, 7, "disk gone"))
    job.settle()
    job.now += 0.1
    fail(job, "algo-2", 9)
    (failure,) = {v.failure for v in job.verdicts.values()}
    assert failure.kind == "budget"
    assert "also: exit: rank 2 on algo-2, exit 9, attempt 2/2: no message on stderr" in failure.text()


def test_a_stop_after_a_restart_gives_the_ranks_their_grace():
    """The ranks that the restart has ended say nothing of the next attempt's."""
    job = running(2, restarts=1)
    job.act("algo-2", job.members["algo-2"].rank_exited(job.now, 0, 3))
    while job.hub.state is not HubState.RESTART:
        while job.to_hub["algo-2"]:
            job.hear("algo-2", job.to_hub["algo-2"].pop(0))
        job.now = job.hub.deadline
        job.send(job.hub.tick(job.now))
    member = job.members["algo-1"]
    job.act("algo-1", member.restart(job.now, 1))
    job.act("algo-1", member.all_ranks_gone(job.now))  # they have ended by the restart's SIGTERM
    member.cleared(job.now)
    job.act("algo-1", member.go(job.now, Go(1, "algo-1", 1), {0: 0, 1: 1}))
    job.signals["algo-1"].clear()
    job.to_hub["algo-1"].clear()
    job.act("algo-1", member.stop_asked(job.now, "SIGTERM on algo-1"))
    assert job.signals["algo-1"] == [15]
    assert job.to_hub["algo-1"] == [Stop("SIGTERM on algo-1")], "not done before its ranks are"
