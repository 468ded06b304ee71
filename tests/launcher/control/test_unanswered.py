"""A host whose report of a failure nobody answers."""

from __future__ import annotations

from algorun.control.host_loss import silence_s
from algorun.control.member.member import Member
from algorun.control.wire.messages import Go
from algorun.job.limits import Limits


def test_it_waits_for_the_verdict_about_itself_and_then_says_that_it_lost_the_leader():
    """A network may lose large packets: the hub's heartbeats arrive, this host's report does not."""
    member, now = Member(0.0, "algo-2", "algo-1", Limits()), 1.0
    member.heard(0.0)
    member.go(0.0, Go(0, "algo-1", 1, {"algo-1": 1, "algo-2": 1}), {0: 1})
    assert member.rank_exited(now, 0, 3)
    while member.verdict is None:
        now = min(now + 1.0, max(now, member.deadline))
        member.heard(now)
        member.tick(now)
    assert now > 1.0 + silence_s(Limits()) + Limits().blame_s, (
        "the hub counts it as lost, and would have said so by then"
    )
    failure = member.verdict.failure
    assert (failure.kind, failure.host, failure.code) == ("lost", "algo-1", 66)
    assert failure.message == "hub lost: it does not answer the failure that this host has reported"
    assert "rank 1 on algo-2, exit 3" in failure.others
    assert now < 1.0 + 3 * silence_s(Limits())
