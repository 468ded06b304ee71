"""A host's time by cause: the causes always add up to the wall time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.timing.activities import NAMES
from algorun.timing.clock import CAUSES, PROGRAM, Clock, RankMoments
from tests.conftest import examples

TIMES = st.floats(0, 1000)
RANKS = st.lists(st.builds(RankMoments, st.integers(0, 9), TIMES, TIMES, TIMES), max_size=4)
EVENTS = st.one_of(
    st.tuples(st.just("mark"), st.sampled_from(CAUSES)),
    st.tuples(st.just("divide"), st.tuples(st.sampled_from(CAUSES), TIMES, st.sampled_from(CAUSES))),
    st.tuples(st.just("ranks"), RANKS),
    st.tuples(st.just("failed"), st.integers(0, 9)),
)


@examples(300)
@given(events=st.lists(st.tuples(st.floats(0, 5), EVENTS), max_size=20), more=st.floats(0, 5))
def test_the_causes_add_up_whatever_happens(events, more):
    now, clock = 100.0, Clock(100.0)
    for later, (what, value) in events:
        now += later
        if what == "mark":
            clock.mark(now, value)
        elif what == "divide":
            clock.divide(now, value[0], [(value[1], value[2])])
        elif what == "ranks":
            clock.ranks(now, value)
        else:
            clock.attempt_failed(now, value)
    seconds = clock.seconds(now + more)
    assert sum(seconds.values()) == pytest.approx(now + more - 100.0, abs=1e-6)
    assert all(spent > 0 for spent in seconds.values())


def run_to(clock, *marks):
    for moment, cause in marks:
        clock.mark(moment, cause)
    return clock


def test_the_time_of_ranks_is_divided_at_the_mean_of_their_moments():
    clock = run_to(Clock(0), (1, "gate"), (2, "check"), (3, "program"), (20, "waiting"), (22, "leaving"))
    clock.ranks(30, [RankMoments(8, 4, 6, 16), RankMoments(8, 6, 8, 18)])
    assert clock.seconds(23) == {
        "launcher": 1, "gate": 1, "check": 1, "import": 2, "first_step": 2, "training": 10, "after_steps": 3,
        "waiting": 2, "leaving": 1,
    }  # fmt: skip
    assert clock.steps == 8


def test_a_program_whose_steps_nobody_saw_is_one_row():
    clock = run_to(Clock(0), (1, "program"), (5, "leaving"))
    clock.ranks(30, [RankMoments(8, 2, 3, 4), RankMoments(0, 2, 0, 0)])
    assert clock.seconds(6) == {"launcher": 1, "program": 4, "leaving": 1}


def test_all_of_a_failed_attempt_is_lost_and_the_way_to_the_next_is_the_restart():
    clock = run_to(Clock(0), (1, "gate"), (2, "program"), (6, "waiting"))
    clock.attempt_failed(7, 40)
    run_to(clock, (8, "gate"), (9, "check"), (10, "program"))
    clock.ranks(30, [RankMoments(5, 0, 12, 15)])
    assert clock.seconds(16) == {
        "launcher": 1, "gate": 1, "first_step": 2, "training": 3, "after_steps": 1, "lost_attempts": 5, "restarts": 3,
    }  # fmt: skip
    assert (clock.attempts, clock.lost_steps) == (2, 40)


def test_a_preparation_is_divided_by_what_it_says():
    clock = run_to(Clock(0), (1, "prepare"), (9, "gate"))
    clock.divide(10, "prepare", [(2, "fetch"), (5, "install"), (50, "unpack")])
    assert clock.seconds(10) == {"launcher": 1, "prepare": 1, "fetch": 3, "install": 4, "gate": 1}


def test_activities_are_the_mean_over_the_ranks_and_absent_where_none_says_any():
    clock = Clock(0.0)
    clock.mark(1.0, PROGRAM)
    said = [(float(rank), 0.0, 0.0, 2.0, 0.0, 0.0, 4.0) for rank in (1, 3)]
    clock.ranks(9.0, [RankMoments(5, 2.0, 3.0, 8.0, each) for each in said])
    assert clock.activities == dict(zip(NAMES, (2.0, 0.0, 0.0, 2.0, 0.0, 0.0, 4.0), strict=True))
    other = Clock(0.0)
    other.mark(1.0, PROGRAM)
    other.ranks(9.0, [RankMoments(5, 2.0, 3.0, 8.0, (0.0,) * 7)])
    assert other.activities == {}
