"""A running job: failures and losses, under random orders of events and with a clock of its own."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from algorun.control.failures.failure import Failure, Raised
from algorun.control.host_loss import RECONNECT_S, REPORT_AGAIN_S, silence_s
from algorun.control.hub.hub import Hub
from algorun.control.member.actions import Conclude
from algorun.control.member.member import Member
from algorun.control.wire import messages
from algorun.control.wire.messages import Bye, End, Heartbeat, Notice
from algorun.job.limits import Limits
from tests.conftest import examples
from tests.launcher.jobs import LIMITS, finish, hello, ready, running


def test_all_hosts_leave_together_after_the_last_is_done():
    job = running(3)
    for host in job.hosts[:2]:
        finish(job, host)
    job.settle()
    assert not job.verdicts, "an early 0 must not end the others"
    finish(job, "algo-3")
    job.settle()
    assert {v.kind for v in job.verdicts.values()} == {"ok"}
    assert len(job.verdicts) == 3
    assert job.hub.finished


def test_silence_of_a_host_ends_the_job():
    job = running(2)
    job.dead.add("algo-2")  # its messages stop, its connection stays
    job.to_hub["algo-2"].clear()
    job.pass_time(silence_s(LIMITS) + LIMITS.blame_s - 0.1)
    assert not job.verdicts, "a gap just below the time-out may look so"
    job.pass_time(0.2)
    assert job.verdicts["algo-1"].code == 66
    assert job.verdicts["algo-1"].failure.headline().endswith("algo-2, exit 66: host lost: no sign of life for 12.25 s")


def test_silence_of_the_hub_ends_a_host():
    member = Member(0.0, "algo-2", "algo-1", LIMITS)
    member.heard(0.0)
    quarters = [each / 4 for each in range(1, 80)]
    concluded = [at for at in quarters for a in member.tick(at) if isinstance(a, Conclude)]
    assert concluded == [LIMITS.heartbeat_timeout_s + LIMITS.heartbeat_s + RECONNECT_S]
    assert member.verdict.code == 66


def test_a_host_that_was_paused_reads_what_has_come_before_it_calls_the_hub_lost():
    member = Member(0.0, "algo-2", "algo-1", LIMITS)
    member.heard(0.0)
    woken = 60.0
    assert not [a for a in member.tick(woken) if isinstance(a, Conclude)]
    member.heard(woken + 0.1)  # it had been there all the time
    for tenth in range(1, 50):
        assert not [a for a in member.tick(woken + tenth / 10) if isinstance(a, Conclude)]


def test_a_hub_that_was_paused_hears_its_hosts_before_it_calls_them_lost():
    job = running(2)
    job.now += 60.0
    job.send(job.hub.tick(job.now))
    assert not job.hub.verdict
    job.hub.heard(job.now + 0.1, "algo-2")
    job.pass_time(5)
    assert not job.verdicts


def warnings(sends):
    return [message.text for host, message in sends if isinstance(message, Notice) and host == "algo-1"]


def silent_until(hub, now, host):
    """Beats of the hub until a host is heard again; the beat after that."""
    while hub.deadline < now:
        hub.tick(hub.deadline)
    hub.heard(now, host)
    return hub.tick(hub.deadline)


def test_a_silence_that_ends_is_told_of_once_in_a_while():
    job = running(2)
    assert warnings(silent_until(job.hub, 2.9, "algo-2")) == [], "a beat or two may be late"
    told = warnings(silent_until(job.hub, 7.2, "algo-2"))
    assert told == ["no sign of life from algo-2 for 4.3 s; it is back"]
    assert warnings(silent_until(job.hub, 12.0, "algo-2")) == []
    found = []
    while job.hub.deadline < 10 + REPORT_AGAIN_S:
        job.hub.heard(job.hub.deadline - 0.1, "algo-2")
        found += warnings(job.hub.tick(job.hub.deadline))
    assert found == ["no sign of life from algo-2 for 4.8 s; it is back"]


def test_hosts_that_come_back_together_are_told_of_together():
    job = running(4)
    while job.hub.deadline < 5:
        job.hub.tick(job.hub.deadline)
    for host in ("algo-3", "algo-2"):
        job.hub.heard(5.0, host)
    told = warnings(job.hub.tick(job.hub.deadline))
    assert told == ["no sign of life from algo-3, algo-2 for 5.0 s; they are back"]


def test_a_pause_of_the_hub_is_no_silence_of_its_hosts():
    job = running(2)
    job.hub.heard(8.0, "algo-2")  # read before the hub has looked at its own clock
    assert warnings(job.hub.tick(8.0)) == []


def test_a_host_that_is_not_heard_is_told_so():
    hub = running(2).hub
    beats = [hub.tick(hub.deadline) for _ in range(4)]
    assert [dict(beat)["algo-2"].unheard for beat in beats] == [False, False, True, True]
    hub.heard(4.1, "algo-2")
    assert dict(hub.tick(hub.deadline))["algo-2"] == Heartbeat()


def test_a_host_that_comes_back_too_late_hears_the_verdict():
    hub = running(2).hub
    while hub.verdict is None:
        hub.tick(hub.deadline)
    assert hub.finished
    ((host, message),) = hub.reconnected(hub.deadline if hub.deadline < 1e9 else 14.0, "algo-2")
    assert host == "algo-2"
    assert message.verdict.failure.message == "host lost: no sign of life for 12.25 s"
    assert not hub.finished, "it may still leave in peace"
    hub.bye(14.1, "algo-2")
    assert hub.finished


def test_a_host_that_comes_back_while_its_loss_is_weighed_hears_the_verdict_too():
    hub = running(2).hub
    now = 0.0
    while not hub.departed:
        now = hub.deadline
        hub.tick(now)
    assert hub.reconnected(now + 0.5, "algo-2") == []
    ends = [host for host, message in hub.tick(now + LIMITS.blame_s) if isinstance(message, End)]
    assert sorted(ends) == ["algo-1", "algo-2"]


def test_heartbeats_keep_a_quiet_job_alive():
    job = running(3)
    job.pass_time(3600)
    assert not job.verdicts


def test_the_clock_of_another_host_is_never_compared():
    """Ages count, not times: a host reports how long ago, by its own clock."""
    job = running(3)
    early = Failure("exit", "algo-2", 7, "first", rank=2, age_s=0.4)
    late = Failure("exit", "algo-3", 8, "second", rank=4, age_s=0.0)
    job.send(job.hub.fail(0.5, late))
    job.send(job.hub.fail(0.7, early))
    job.now = 0.7
    job.pass_time(2)
    assert job.verdicts["algo-1"].failure.message == "first"


def test_an_old_exception_that_a_rank_survived_is_not_blamed():
    job = running(2)
    job.members["algo-2"].rank_raised(job.now, 0, Raised(2, 999, job.now, "ImportError", "old", ""), is_rank=False)
    job.pass_time(60)
    job.act("algo-2", job.members["algo-2"].rank_exited(job.now, 0, 2, "the real end"))
    job.settle()
    job.pass_time(2)
    assert job.verdicts["algo-1"].failure.message == "the real end"


def test_an_exception_below_a_rank_counts_only_if_the_rank_fails():
    job = running(2)
    raised = Raised(2, 999, job.now, "ValueError", "in a child", "Traceback")
    assert job.members["algo-2"].rank_raised(job.now, 0, raised, is_rank=False) == []
    job.act("algo-2", job.members["algo-2"].rank_exited(job.now, 0, 3))
    job.settle()
    job.pass_time(2)
    assert "ValueError: in a child" in job.verdicts["algo-1"].failure.headline()
    assert job.verdicts["algo-1"].code == 3


@examples(300)
@example(count=2, seed=1, events=[("fail", 0, 0.0), ("stop", 1, 0.0)])  # the stop overtakes the failure
@given(
    count=st.integers(1, 4),
    seed=st.integers(0, 10_000),
    events=st.lists(
        st.tuples(
            st.sampled_from(["done", "fail", "leave", "miss", "time-out", "kill", "reset", "stop", "wait", "deliver"]),
            st.integers(0, 3),
            st.sampled_from([0.0, 0.1, 0.9, 1.1, 5.0]),
        ),
        max_size=12,
    ),
)
def test_whatever_happens_every_living_host_gets_one_and_the_same_verdict(count, seed, events):
    job = running(count, seed)
    finished: set[str] = set()
    for kind, index, seconds in events:
        host = job.hosts[index % count]
        if host in job.dead:
            continue
        if kind == "done":
            finished.add(host)
        job.happen(kind, host, seconds)
        if "algo-1" in job.dead:
            break
    for host in job.hosts:  # whoever still runs, ends well
        if host not in job.dead and host not in finished:
            finish(job, host)
    job.settle()
    job.pass_time(LIMITS.gate_s + LIMITS.grace_s)
    living = [host for host in job.hosts if host not in job.dead]
    assert set(living) <= set(job.verdicts)
    verdicts = {job.verdicts[host] for host in living}
    if "algo-1" not in job.dead:
        assert len(verdicts) <= 1
        assert job.hub.finished
    for verdict in verdicts:
        assert (verdict.code == 0) == (verdict.failure is None)


def test_a_host_that_gives_up_says_why():
    """It heard nothing of the hub; what it says before it leaves may arrive all the same."""
    job = running(2)
    member = job.members["algo-2"]
    while member.verdict is None:
        member.tick(member.deadline)
    bye = messages.bye(member.verdict)
    assert bye == Bye("hub lost: no sign of life from algo-1 for 12.25 s")
    job.send(job.hub.bye(job.now, "algo-2", why=bye.why))
    job.pass_time(LIMITS.blame_s + 0.1)
    headline = job.verdicts["algo-1"].failure.headline()
    assert headline == "lost: algo-2, exit 66: host lost: it gave up: hub lost: no sign of life from algo-1 for 12.25 s"


@pytest.mark.parametrize("started", [False, True])
def test_a_host_that_leaves_without_a_verdict_ends_the_job(started):
    """It no longer heard the hub, which heard it all the time: it is gone, and its ranks will never be done."""
    hub = Hub(0.0, ("algo-1", "algo-2"), Limits())
    for host in ("algo-1", "algo-2"):
        hub.hello(0.0, hello(host))
        if started:
            hub.ready(0.0, host, ready(host))
    hub.bye(1.0, "algo-2")
    hub.lost(1.0, "algo-2", "host lost: connection closed")
    sends = hub.tick(1.0 + Limits().blame_s)
    assert hub.verdict is not None
    assert hub.verdict.failure == Failure("lost", "algo-2", 66, "host lost: it left before the end")
    assert [host for host, message in sends if isinstance(message, End)] == ["algo-1"]


def test_a_host_that_is_found_lost_late_was_lost_before_the_failures_that_it_has_caused():
    """On a busy machine the hub looks later than it wanted to."""
    hub = Hub(0.0, ("algo-1", "algo-2"), Limits())
    for host in ("algo-1", "algo-2"):
        hub.hello(0.0, hello(host))
        hub.ready(0.0, host, ready(host))
    hub.reset(1.0, "algo-2", "connection reset")
    hub.fail(1.1, Failure("exception", "algo-1", 1, "RuntimeError: something odd about a peer", rank=0))
    for now in (3.9, 5.0):
        hub.tick(now)
    assert hub.verdict is not None
    assert hub.verdict.failure.kind == "lost"
