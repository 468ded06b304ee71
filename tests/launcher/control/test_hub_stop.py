"""A job that is asked to stop: every host hears of it, ranks save, the grace ends."""

from __future__ import annotations

from algorun.control.failures.failure import Raised
from algorun.control.member.joining import STOP_S
from tests.launcher.jobs import LIMITS, Job, finish, running


def test_a_stop_reaches_every_host_and_ends_with_0():
    job = running(3)
    job.act("algo-2", job.members["algo-2"].stop_asked(job.now, "SIGTERM on algo-2"))
    job.settle()
    assert all(signals == [15] for signals in job.signals.values())
    for host in job.hosts:
        finish(job, host, code=-15)
    job.settle()
    assert {(v.kind, v.code) for v in job.verdicts.values()} == {("stopped", 0)}
    assert {v.why for v in job.verdicts.values()} == {"SIGTERM on algo-2"}


def test_a_stop_before_the_hub_is_reached_is_told_to_it():
    """Or the hub would wait for this host for seconds, when all hosts are told to stop while they start."""
    job = Job(2)
    job.arrive("algo-1")
    job.act("algo-1", job.members["algo-1"].stop_asked(job.now, "SIGTERM on algo-1"))
    job.act("algo-2", job.members["algo-2"].stop_asked(job.now, "SIGTERM on algo-2"))
    job.settle()
    assert not job.hub.finished
    job.arrive("algo-2")
    job.settle()
    assert [verdict.kind for verdict in job.verdicts.values()] == ["stopped", "stopped"]
    assert job.verdicts["algo-1"] == job.verdicts["algo-2"]
    assert job.hub.finished


def test_a_host_that_is_told_to_stop_leaves_soon_where_no_hub_is():
    job = Job(2)
    member = job.members["algo-2"]
    job.act("algo-2", member.stop_asked(job.now, "SIGTERM on algo-2"))
    job.act("algo-2", member.tick(STOP_S - 0.1))
    assert not job.verdicts
    job.act("algo-2", member.tick(STOP_S + 0.1))
    assert job.verdicts["algo-2"].kind == "stopped"


def test_a_second_stop_does_not_wait_for_a_hub():
    job = Job(2)
    for _ in range(2):
        job.act("algo-2", job.members["algo-2"].stop_asked(job.now, "SIGINT on algo-2"))
    assert job.verdicts["algo-2"].why == "SIGINT on algo-2"


def test_a_peer_that_a_stop_has_ended_is_no_failure():
    """The stopped host's ranks may vanish before the stop has reached the others."""
    job = running(2)
    job.act("algo-2", job.members["algo-2"].stop_asked(job.now, "SIGTERM on algo-2"))
    raised = Raised(0, 1, job.now, "RuntimeError", "Connection closed by peer", "")
    job.act("algo-1", job.members["algo-1"].rank_raised(job.now, 0, raised, is_rank=True))
    while job.to_hub["algo-2"]:  # the stop is heard first
        job.hear("algo-2", job.to_hub["algo-2"].pop(0))
    job.settle()
    for host in job.hosts:
        finish(job, host, code=1)
    job.settle()
    job.pass_time(20)
    assert {(v.kind, v.code) for v in job.verdicts.values()} == {("stopped", 0)}


def test_what_outlasts_the_grace_is_killed():
    job = running(2)
    job.act("algo-1", job.members["algo-1"].stop_asked(job.now, "SIGTERM"))
    job.settle()
    job.pass_time(LIMITS.grace_s + 1)
    assert all(signals == [15, 9] for signals in job.signals.values())


def test_a_second_request_at_a_terminal_ends_the_grace():
    job = running(2)
    member = job.members["algo-1"]
    assert member.hurry(job.now) == []  # nothing to hurry before the first
    job.act("algo-1", member.stop_asked(job.now, "SIGINT on algo-1", interrupt=True))
    assert job.signals["algo-1"] == [15]
    job.act("algo-1", member.stop_asked(job.now + 1, "SIGINT on algo-1", interrupt=True))
    assert job.signals["algo-1"] == [15, 9]
    assert member.hurry(job.now + 1) == []


def test_a_save_that_fails_in_a_stop_fails_the_job_after_the_others_have_saved():
    job = running(2)
    job.act("algo-1", job.members["algo-1"].stop_asked(job.now, "SIGTERM on algo-1"))
    job.settle()
    raised = Raised(
        2, 1, job.now, "OSError", "[Errno 28] No space left on device: '/opt/ml/checkpoints/a'", "Traceback"
    )
    job.act("algo-2", job.members["algo-2"].rank_raised(job.now, 0, raised, is_rank=True))
    finish(job, "algo-2", code=1)
    job.settle()
    assert not job.verdicts, "algo-1 still saves"
    finish(job, "algo-1")
    job.settle()
    (failure,) = {verdict.failure for verdict in job.verdicts.values()}
    assert (failure.rank, failure.code, failure.kind) == (2, 1, "exception")
    assert "No space left on device" in failure.headline()
