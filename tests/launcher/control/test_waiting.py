"""What hosts print while they wait for each other."""

from __future__ import annotations

from algorun.control.hub.waiting import Reach, Waiting


def test_a_wait_is_told_after_some_seconds_and_then_rarely():
    waiting = Waiting(100.0)
    told = [second for second in range(100, 1000) if waiting.due(float(second))]
    assert told == [110, 170, 290, 530]


def test_a_follower_says_what_it_has_seen_of_the_hub():
    reach = Reach(0.0, "algo-1", ("algo-1", 29600))
    assert reach.waits(9.9) == ""
    assert reach.waits(10.0) == "waiting for algo-1, the leader (algo-1 port 29600: no answer yet)"
    reach.failed("Connection refused")
    assert reach.waits(70.0) == "waiting for algo-1, the leader (algo-1 port 29600: Connection refused)"
    assert reach.waits(71.0) == ""


def test_what_answers_in_the_hubs_place_is_told_once():
    reach = Reach(0.0, "algo-1", ("algo-1", 29600))
    line = reach.silent("10.0.0.1", 3.0)
    assert line.startswith(
        "warning: algo-1, the leader: 10.0.0.1 port 29600 has accepted a connection and said nothing"
    )
    assert reach.silent("10.0.0.1", 3.0) == ""
    assert "it sent 'x'" in reach.alien("10.0.0.1", "'x'")
    assert reach.alien("10.0.0.1", "'x'") == ""
    assert reach.seen == "10.0.0.1 port 29600 is another program's: it sent 'x'"
    lines = [reach.alien("10.0.0.1", f"'{number}'") for number in range(100)]  # another word each time
    assert len([line for line in lines if line]) < 5


def test_the_wait_may_end_over_a_connection_that_is_a_moment_old():
    reach = Reach(0.0, "algo-1", ("algo-1", 29600))
    silent = "10.0.0.1 port 29600 accepts connections and says nothing: another program may have the port"
    assert reach.with_open("10.0.0.1", "", greeted=False) == silent
    reach.alien("10.0.0.1", "'x'")
    assert reach.with_open("10.0.0.1", "", greeted=False) == "10.0.0.1 port 29600 is another program's: it sent 'x'"
    assert reach.with_open("10.0.0.1", "'y'", greeted=False).endswith("it sent 'y'")
    reach.failed("Connection refused")  # the one that spoke is gone, and another answers
    assert reach.with_open("10.0.0.1", "", greeted=False) == silent
    reach.unproven("10.0.0.1", "'other token'")
    for greeted in (False, True):
        assert reach.with_open("10.0.0.1", "", greeted=greeted).endswith("; it sent 'other token'")
