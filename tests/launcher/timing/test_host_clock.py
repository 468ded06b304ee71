"""The distance of two clocks: the truth always lies within what is stated, however the way there and back differ."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.timing.host_clock import DRIFT, HostClock
from tests.conftest import examples

DELAYS = st.floats(0, 2)


@given(
    st.floats(-1e6, 1e6),
    st.floats(-DRIFT, DRIFT),
    st.lists(st.tuples(st.floats(0, 600), DELAYS, DELAYS), min_size=1, max_size=80),
    st.tuples(st.floats(0, 600), st.floats(0, 600)),
)
@examples(200)
def test_the_leader_s_clock_is_never_further_away_than_stated(distance, drift, trips, window):
    def leader(at: float) -> float:
        return at + distance + drift * at

    clock = HostClock(leads=False)
    for sent_at, there, back in sorted(trips):
        clock.answered(sent_at, leader(sent_at + there), sent_at + there + back)
    begin, end = sorted(window)
    found = clock.offset(begin, end)
    assert found is not None
    rounding = 1e-6
    for moment in (begin, end, (begin + end) / 2):
        assert abs(moment + found.seconds - leader(moment)) <= found.within_s + DRIFT * 4 + rounding


def test_the_shortest_round_trip_counts():
    clock = HostClock(leads=False)
    clock.answered(10.0, 110.9, 11.0)
    clock.answered(11.0, 111.0001, 11.0002)
    clock.answered(12.0, 112.4, 12.6)
    found = clock.offset(11.0, 11.0)
    assert found is not None
    assert found.seconds == pytest.approx(100.0)
    assert found.within_s == pytest.approx(0.0001, abs=1e-5)


def test_the_leader_needs_no_answer_and_another_host_without_one_knows_nothing():
    assert HostClock(leads=False).offset(0, 1) is None
    own = HostClock(leads=True).offset(0, 1)
    assert own is not None
    assert (own.seconds, own.within_s) == (0.0, 0.0)


def test_an_answer_before_its_question_is_none():
    clock = HostClock(leads=False)
    clock.answered(10.0, 5.0, 9.0)
    assert clock.offset(0, 1) is None
