"""A slow rank is named once, when it was slow in several windows of one attempt."""

from __future__ import annotations

from algorun.control.hub.pace import IN_A_ROW, Paces
from algorun.control.wire.messages import Pace, Verdict
from algorun.timing.rank_times import RankTimes

HOSTS = {"algo-1": (0, 1), "algo-2": (2, 3)}
WINDOW_S = 10.0


class Job:
    """Four ranks on two hosts; `window` lets time pass and returns what the leader's log says."""

    def __init__(self):
        self.paces, self.attempt, self._number = Paces(), 0, 0
        self._spent = {rank: [0.0] * 7 for rank in range(4)}
        self._queued = dict.fromkeys(range(4), 0.0)

    def window(self, *slow, hosts=tuple(HOSTS), queued=False):
        """`slow` ranks work all the time; `queued`: because they find no core."""
        self._number += 1
        said = []
        for rank in slow:
            self._queued[rank] += WINDOW_S / 2 if queued else 0.0
        for rank, spent in self._spent.items():
            own = WINDOW_S if rank in slow else WINDOW_S / 2
            spent[1] += own  # forward
            spent[3] += WINDOW_S - own  # exchange
        for host in hosts:
            times = [
                RankTimes(
                    rank, 0, 100 * self._number, WINDOW_S * self._number, tuple(self._spent[rank]), self._queued[rank]
                )
                for rank in HOSTS[host]
            ]
            said.append(self.paces.heard(host, Pace(self.attempt, tuple(times)), self.attempt, 4))
        return "".join(said)


def test_a_slow_rank_is_named_once():
    job = Job()
    job.window()
    assert [job.window(2) for _ in range(IN_A_ROW - 1)] == [""] * (IN_A_ROW - 1)
    assert job.window(2) == (
        "slow: rank 2 on algo-2: its own work takes 2.0 x the others' time, most of the excess in forward; "
        "the others wait 50% of the time"
    )
    assert not any(job.window(2) for _ in range(5))


def test_all_ranks_of_a_slow_host_are_named_together():
    job = Job()
    job.window()
    said = "".join(job.window(2, 3) for _ in range(IN_A_ROW))
    assert said.startswith("slow: ranks 2, 3 on algo-2: their own work")


def test_a_short_slowness_is_an_accident():
    job = Job()
    job.window()
    assert not any(job.window(*slow) for slow in [(2,), (2,), (), (2,), (1,), (1,), (), (3,)])


def test_another_attempt_begins_anew_and_may_be_named_again():
    job = Job()
    job.window()
    assert "".join(job.window(2) for _ in range(IN_A_ROW))
    job.attempt = 1
    job.window(2)
    assert not job.window(2)
    assert "".join(job.window(2) for _ in range(IN_A_ROW - 1)).startswith("slow: rank 2 ")


def test_who_was_slow_in_all_of_a_short_job_is_said_at_its_end():
    job = Job()
    job.window()
    assert job.paces.at_the_end() == ""
    assert job.window(2) == ""
    assert job.paces.at_the_end().startswith("slow: rank 2 on algo-2: its own work takes 2.0 x the others' time")


def test_who_lacks_a_core_for_a_moment_is_not_said_at_the_end():
    job = Job()
    job.window()
    for _ in range(IN_A_ROW - 1):
        assert job.window(2, queued=True) == ""
        assert job.paces.at_the_end() == ""
    assert "most of the excess in waiting for a core" in job.window(2, queued=True)
    assert job.paces.at_the_end().startswith("slow: rank 2 on algo-2")


def test_who_became_slow_at_the_end_is_said_too():
    job = Job()
    for _ in range(20):
        job.window()
    for _ in range(IN_A_ROW - 1):
        assert job.window(2) == ""
    assert job.paces.at_the_end().startswith("slow: rank 2 on algo-2")


def test_who_was_slow_for_a_while_is_said_at_the_end_as_it_was_then():
    job = Job()
    job.window()
    said = "".join(job.window(2) for _ in range(IN_A_ROW))
    for _ in range(50):
        job.window()
    assert job.paces.at_the_end() == said != ""


def test_an_even_job_ends_without_a_word():
    job = Job()
    for number in range(50):
        job.window(*([2] if number == 20 else []))
    assert job.paces.at_the_end() == ""


def test_what_is_too_short_to_tell_is_not_told():
    paces = Paces()
    for at, forward in ((0.0, 0.0), (4.0, 4.0)):
        ranks = [
            RankTimes(
                rank, 0, int(at) * 10 + 1, at, (0.0, forward / (2 - rank), 0.0, at - forward / (2 - rank), *(0.0,) * 3)
            )
            for rank in (0, 1)
        ]
        paces.heard("algo-1", Pace(0, tuple(ranks)), 0, 2)
    assert paces.at_the_end() == ""


def test_what_ranks_spend_more_on_than_the_others_is_said_at_the_end():
    job = Job()
    for _ in range(9):
        job.window()
    assert job.paces.above_at_the_end() == "", "an even job"
    job.window(2)
    for _ in range(IN_A_ROW):
        job.window()
    verdict = job.paces.add_to(Verdict("ok", 0), job.attempt)
    assert (verdict.kind, verdict.slow) == ("ok", ""), "too little for a verdict"
    assert verdict.above == "rank 2 in forward 4.2% of the time"
    assert job.paces.add_to(Verdict("failed", 1), job.attempt + 1).above == "", "an attempt that has reported nothing"


def test_a_host_that_reports_nothing_ends_no_window():
    job = Job()
    job.window()
    assert not any(job.window(2, hosts=("algo-2",)) for _ in range(5))


def test_a_report_of_an_attempt_that_has_failed_counts_for_nothing():
    job = Job()
    report = Pace(3, (RankTimes(0, 0, 1, 1.0, (0.0,) * 7),))
    assert job.paces.heard("algo-1", report, 0, 4) == ""
    assert job.paces.heard("algo-1", report, 0, 1) == ""
