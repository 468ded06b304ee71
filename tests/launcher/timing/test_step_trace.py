"""From the moments of ranks to a trace: what a strict reader sees in it, whatever was noted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.inside import rank_trace
from algorun.timing import step_trace
from algorun.timing.activities import NAMES
from algorun.timing.host_clock import Offset
from algorun.timing.step_trace import END, HEAD, MOMENT, STEP, Moments, TracePart, merged, read_moments, to_json
from tests.conftest import examples

from .trace_reader import slices

SAME = Offset(0.0, 0.0)
TWO_STEPS = ((1.0, STEP), (1.1, 2), (1.2, 4), (1.3, END), (1.4, END), (2.0, STEP), (2.5, 1), (3.0, STEP), (3.0, END))


def part(host="algo-1", number=0, attempt=1, ranks=(0, 1), clock: Offset | None = SAME, **changes) -> TracePart:
    found = Moments(**{"first": 50, "last": 51, "closed": True, "left_out": 0, "moments": TWO_STEPS, **changes})
    return TracePart(host, number, attempt, dict.fromkeys(ranks, found), clock, 1000.0)


def test_the_format_of_a_rank_s_file_is_the_same_on_both_sides():
    assert HEAD.size == 8 * rank_trace.HEAD
    assert MOMENT.size == 8 * rank_trace.MOMENT
    assert (rank_trace.END, rank_trace.STEP) == (step_trace.END, step_trace.STEP)


def test_steps_and_activities_are_slices_of_their_rank():
    found = slices(to_json(part(ranks=(3,))))
    assert [(each.thread, each.name, each.begin, each.end) for each in found] == [
        ("rank 3: steps", "step 50", 1e6, 2e6),
        ("rank 3: steps", "step 51", 2e6, 3e6),
        ("rank 3", "forward", 1.1e6, 1.4e6),
        ("rank 3", "exchange", 1.2e6, 1.3e6),
        ("rank 3", "data", 2.5e6, 3e6),
    ]
    assert {each.process for each in found} == {"algo-1"}


def test_hosts_meet_on_the_leader_s_clock():
    second = part("algo-2", 1, ranks=(2, 3), clock=Offset(-100.0, 0.0002))
    third = part("algo-3", 2, ranks=(4, 5), clock=Offset(0.5, 0.0003))
    shifted = TracePart(
        "algo-2", 1, 1, {rank: moved(each, 100.0) for rank, each in second.ranks.items()}, second.clock, 1.0
    )
    (trace,) = merged([json.loads(json.dumps(to_json(each))) for each in (part(), shifted, third)])
    begins = {each.thread: each.begin for each in slices(dict(trace.trace)) if each.name == "step 50"}
    assert begins == {f"rank {rank}: steps": (0.5e6 if rank > 3 else 0.0) for rank in range(6)}
    assert trace.within_s == pytest.approx(0.0005), "two hosts may be wrong in opposite directions"
    assert trace.line("t.json") == (
        "trace of steps 50 to 51 of 6 ranks on 3 hosts, clocks within 0.50 ms: t.json (open it at https://ui.perfetto.dev)"
    )


def moved(found: Moments, by: float) -> Moments:
    return Moments(
        found.first, found.last, found.closed, found.left_out, tuple((at + by, what) for at, what in found.moments)
    )


def test_without_an_answer_of_the_leader_hosts_meet_on_their_wall_clocks():
    other = TracePart("algo-2", 1, 1, {2: moved(part().ranks[0], 100.0)}, None, 900.25)
    (trace,) = merged([to_json(part()), to_json(other)])
    begins = {each.thread: each.begin for each in slices(dict(trace.trace)) if each.name == "step 50"}
    assert begins["rank 2: steps"] - begins["rank 0: steps"] == pytest.approx(0.25e6, abs=1)
    assert trace.within_s is None
    assert "on 2 hosts, their wall clocks: t" in trace.line("t")


def test_each_attempt_is_a_trace_and_what_is_none_is_left_out():
    odd = to_json(part(attempt=3))
    odd["metadata"]["algorun"]["steps"] = [50, "51"]
    found = merged(
        [to_json(part(attempt=2)), {"traceEvents": []}, [], "x", odd, to_json(part(attempt=1, closed=False))]
    )
    assert [(each.attempt, each.complete) for each in found] == [(1, False), (2, True)]
    assert found[0].line("t").startswith("trace of steps 50 to 51, cut short, of 2 ranks on 1 host: t")


WHAT = st.sampled_from([END, STEP, 77, *range(1, len(NAMES) + 1)])


@given(st.lists(st.tuples(st.floats(0, 10), WHAT), max_size=60), st.floats(-1e5, 1e5))
@examples(200)
def test_whatever_was_noted_a_strict_reader_takes_the_trace(pieces, shift):
    at, moments = 5e5, []
    for pause, what in pieces:
        at += pause
        moments.append((at, what))
    made = part(moments=tuple(moments), clock=Offset(shift, 0.0))
    if not moments:
        with pytest.raises(ValueError, match="no moments"):
            to_json(made)
        return
    found = slices(json.loads(json.dumps(to_json(made))))
    steps = sum(what == STEP for _, what in pieces)
    begun = sum(0 < what <= len(NAMES) for _, what in pieces)
    assert sum(each.name.startswith("step ") for each in found) == 2 * max(0, steps - 1)
    assert sum(each.name in NAMES for each in found) == 2 * begun


@given(
    st.binary(max_size=400)
    | st.lists(st.integers(0, 3), min_size=8, max_size=40).map(lambda n: b"".join(x.to_bytes(8, "little") for x in n))
)
@examples(200)
def test_a_damaged_file_of_a_rank_is_a_value_error_or_moments(data):
    try:
        found = read_moments(data)
    except ValueError:
        return
    assert found is None or len(found.moments) * MOMENT.size + HEAD.size <= len(data)
