"""A session over several connections: what was said is heard once, in order, whatever the connections lose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.control.wire.messages import Heartbeat, Stop
from algorun.control.wire.session import Session

HEARTBEAT = Heartbeat()


def stop(number):
    return Stop(str(number))


def test_a_heartbeat_says_how_many_messages_were_heard():
    one = Session("x")
    one.hear(stop(1))
    one.hear(HEARTBEAT)
    assert one.say(HEARTBEAT) == Heartbeat(heard=1)
    assert one.missed(0) == [], "heartbeats are not kept"


def test_what_was_heard_is_not_kept():
    one = Session("x")
    for number in range(3):
        one.say(stop(number))
    one.hear(Heartbeat(heard=2))
    assert one.missed(2) == [stop(2)]


@pytest.mark.parametrize("heard", [-1, 1, 3])
def test_a_count_that_cannot_be_is_refused(heard):
    one = Session("x")
    one.say(stop(1)), one.say(stop(2))
    one.missed(2)
    with pytest.raises(ValueError, match="heard"):
        one.missed(heard)


@given(st.lists(st.sampled_from(["say", "deliver", "cut", "beat"]), max_size=60))
def test_over_any_cuts_everything_is_heard_once_and_in_order(events):
    near, far = Session("x"), Session("x")
    wire, heard, said = [], [], 0
    for event in [*events, "cut", *["deliver"] * 70]:
        match event:
            case "say":
                wire.append(near.say(stop(said)))
                said += 1
            case "deliver" if wire:
                message = wire.pop(0)
                far.hear(message)
                heard.append(message.why)
            case "cut":  # what was under way is lost; the next connection begins with what the far side has heard
                wire = near.missed(far.heard)
            case "beat":
                near.hear(far.say(HEARTBEAT))
    assert heard == [str(number) for number in range(said)]
