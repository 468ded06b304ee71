"""What is said of refused peers, however many come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from algorun.control.hub.refusals import PAUSE_S, Refusals, shown


def test_the_first_refusal_is_told_at_once_and_the_others_together():
    refusals = Refusals()
    assert refusals.refused(0.0, "10.0.3.7", "no hello") == "refused a connection from 10.0.3.7: no hello"
    assert refusals.due is None
    assert [refusals.refused(1.0, f"10.0.3.{n}", "no hello") for n in (8, 9)] == ["", ""]
    assert refusals.rest(PAUSE_S - 0.1) == ""
    assert refusals.due == PAUSE_S
    assert refusals.rest(PAUSE_S) == "refused 2 more connections, the last from 10.0.3.9: no hello"
    assert refusals.rest(2 * PAUSE_S) == ""


def test_what_is_left_at_the_end_is_told():
    refusals = Refusals()
    refusals.refused(0.0, "10.0.3.7", "a")
    refusals.refused(0.1, "", "b")
    assert refusals.rest(0.2, last=True) == "refused one more connection, from a peer: b"


def test_after_a_quiet_time_a_refusal_is_told_at_once_again():
    refusals = Refusals()
    for at in (0.0, PAUSE_S, 200.0, 1000.0):
        assert refusals.refused(at, "10.0.3.7", "a")


@given(st.lists(st.floats(0.0, 3.0), max_size=300))
def test_no_flood_makes_many_lines_and_none_is_forgotten(pauses):
    refusals, now, lines = Refusals(), 0.0, []
    for pause in pauses:
        now += pause
        if refusals.due is not None and now >= refusals.due:
            lines.append(refusals.rest(now))
        lines.append(refusals.refused(now, "10.0.3.7", "a"))
    lines = [line for line in [*lines, refusals.rest(now, last=True)] if line]
    assert len(lines) <= 3 + now / PAUSE_S
    counted = [line.split()[1] for line in lines]
    assert sum(int(word) if word.isdigit() else 1 for word in counted) == len(pauses)


def test_a_flood_of_hours_makes_a_line_a_minute():
    refusals, lines = Refusals(), []
    for second in range(3600):
        lines += [refusals.rest(float(second)), refusals.refused(float(second), "10.0.3.7", "a")]
    assert len([line for line in lines if line]) == 60


def test_what_a_peer_has_sent_is_escaped_and_cut():
    assert shown(b"GET / HTTP/1.1\r") == "'GET / HTTP/1.1\\r'"
    assert shown(b"\x1b[2J\n\xff") == "'\\x1b[2J\\n\\xff'"
    assert shown(b"x" * 1000) == "'" + "x" * 40 + "'.."
