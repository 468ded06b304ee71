"""Which rank's collective calls do not fit those of the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.control.hang.call import CollectiveCall, nearest
from algorun.control.hang.calls import mismatch, parse
from algorun.control.hang.hang import Stack, StackFrame
from algorun.control.hub.inquiry import Inquiry
from algorun.control.wire.messages import MOST_CALLS, short


def call(number, operation="all_reduce", shapes="[[3]]", group="gloo:0", members="0-3", dtypes="Float", line=1):
    return CollectiveCall(group, number, operation, members, shapes, dtypes, "/opt/ml/code/train.py", line)


SAME = (call(1), call(2, "broadcast"))


def test_equal_calls_fit():
    assert mismatch(dict.fromkeys(range(4), SAME)) is None
    assert mismatch({}) is None


def test_another_type_is_named():
    found = mismatch({0: (call(1),), 1: (call(1, dtypes="Double", line=9),), 2: (call(1),)})
    assert (found.ranks, found.others, found.absent) == ((1,), (0, 2), False)
    assert found.text == (
        "rank 1 called all_reduce [3] Double at train.py:9, 2 others called all_reduce [3] Float at train.py:1"
        " (call 1 of the default group)"
    )


def test_sizes_count_and_not_shapes():
    assert mismatch({0: (call(1, shapes="[[2, 3]]"),), 1: (call(1, shapes="[[6]]"),)}) is None


def test_operations_that_may_be_uneven_may_have_other_sizes():
    uneven = {rank: (call(1, "all_to_all", f"[[{rank}]]", members="0-1"),) for rank in (0, 1)}
    assert mismatch(uneven) is None


def test_a_rank_that_waits_in_a_subgroup_is_not_blamed_for_one_that_does_nothing():
    """Rank 3 is missing in the default group because it waits for rank 2 in theirs."""
    calls = {0: (call(1), call(2)), 1: (call(1), call(2)), 2: (call(1),)}
    calls[3] = (call(1), call(1, group="gloo:1", members="2-3", line=7))
    found = mismatch(calls)
    assert found.absent
    assert found.ranks[0] == 2


def test_a_member_that_never_called_is_absent_and_a_stranger_is_not():
    pair = call(1, group="gloo:1", members="0-2:2")
    found = mismatch({0: (call(1), pair), 1: (call(1),), 2: (call(1),), 3: (call(1),)})
    assert found.ranks == (2,)


def test_groups_of_one_name_and_other_ranks_are_not_compared():
    assert mismatch({0: (call(1, members="0-0"),), 1: (call(1, "barrier", members="1-1"),)}) is None


def test_ranks_without_a_recorder_are_left_out():
    assert mismatch({0: SAME, 1: ()}) is None


@given(st.integers(2, 8), st.data())
def test_one_odd_call_among_many_is_found(ranks, data):
    odd = data.draw(st.integers(0, ranks - 1))
    number = data.draw(st.integers(1, 6))
    calls = {rank: [call(each, members=f"0-{ranks - 1}") for each in range(1, 7)] for rank in range(ranks)}
    calls[odd][number - 1] = call(number, "barrier", members=f"0-{ranks - 1}")
    found = mismatch(calls)
    assert {*found.ranks, *found.others} == set(range(ranks))
    assert found.text.endswith(f"(call {number} of the default group)")
    if ranks > 2:
        assert found.ranks == (odd,)


@given(st.text(max_size=30) | st.sampled_from(["0-7", "1-13:4", "0-9999999", "9-0", "0-5:0", "3,1"]))
def test_members_of_any_text_can_be_read(text):
    mismatch({0: (call(1, members=text),), 1: (call(1, members=text), call(2, members=text))})
    assert 10**9 not in parse(text)


def waiting(rank, *calls):
    frames = (
        StackFrame("/x/torch/distributed/distributed_c10d.py", 9, "all_reduce"),
        StackFrame("/code/train.py", 2, "main"),
    )
    return Stack(rank, "algo-1", 5, frames, calls=calls)


def asked(*stacks):
    inquiry = Inquiry(100.0, 60.0)
    inquiry.stacks.extend(stacks)
    return inquiry.failure(100.0, "algo-1", 1, [], len(stacks))


def test_where_all_ranks_wait_the_calls_decide():
    failure = asked(waiting(0, call(1)), waiting(1, call(1)), waiting(2, call(1, "barrier", "[]", line=8)))
    assert failure.rank == 2
    assert "; rank 2 called barrier Float at train.py:8, 2 others called all_reduce" in failure.message


def test_a_rank_that_works_is_blamed_before_one_that_has_not_called():
    sleeps = Stack(1, "algo-1", 5, (StackFrame("/code/train.py", 4, "load"),), calls=(call(1),), source="time.sleep(9)")
    failure = asked(waiting(0, call(1), call(2)), sleeps)
    assert failure.rank == 1
    assert failure.message.endswith(
        "did not: its last call is all_reduce [3] Float at train.py:1 (call 1 of the default group)"
    )


def test_a_message_holds_the_newest_calls_and_no_long_text():
    found = short(Stack(0, "algo-1", 1, calls=tuple(call(n, "x" * 999, members="1," * 999) for n in range(99))))
    assert [each.number for each in found.calls] == list(range(99 - MOST_CALLS, 99))
    assert found.calls[0].members == ""
    assert len(found.calls[0].operation) < 999


def queued(last, hangs_in=100, odd_at=0):
    """The calls of a rank that has queued `last` on its GPU, of which those before `hangs_in` have completed."""
    states = [(n, "completed" if n < hangs_in else "scheduled") for n in range(1, last + 1)]
    made = [
        CollectiveCall(
            "nccl:0", n, "broadcast" if n == odd_at else "all_reduce", "0-7", "[[9]]", "Float", "/c/t.py", 4, state
        )
        for n, state in states
    ]
    return nearest(made, MOST_CALLS)


def test_a_rank_that_queues_less_on_its_gpu_is_not_blamed():
    """It reads its loss; the network hangs in call 100 of all."""
    assert mismatch({rank: queued(100 if rank == 0 else 131 + rank % 3) for rank in range(8)}) is None


def test_a_rank_that_has_not_made_the_call_that_hangs_is_absent_whatever_the_others_queue():
    found = mismatch({rank: queued(99 if rank == 3 else 160 + rank) for rank in range(8)})
    assert (found.ranks, found.absent) == ((3,), True)
    assert "(call 100 of the default group), rank 3 did not: its last call is all_reduce" in found.text


def test_another_operation_is_found_60_calls_after_it():
    found = mismatch({rank: queued(100 if rank == 3 else 160, odd_at=100 if rank == 3 else 0) for rank in range(8)})
    assert (found.ranks, found.absent) == ((3,), False)
    assert "(call 100 of the default group)" in found.text


BACKWARD = tuple(
    StackFrame(f"/venv/lib/python3.12/site-packages/torch/autograd/{file}", 9, name)
    for file, name in (("graph.py", "_engine_run_backward"), ("__init__.py", "backward"))
)


def on_gpu(rank, calls=()):
    reads = rank == 0
    frames = (StackFrame("/c/t.py", 55 if reads else 41, "main"),)
    source = "print(step, loss.item())" if reads else "loss.backward()"
    return Stack(
        rank, "algo-1", 50 if reads else 51, frames if reads else BACKWARD + frames, source=source, calls=calls
    )


@pytest.mark.parametrize("recorder", [True, False])
def test_nobody_is_blamed_by_steps_where_all_wait_for_gpus(recorder):
    failure = asked(*(on_gpu(rank, queued(100 if rank == 0 else 130) if recorder else ()) for rank in range(8)))
    assert (failure.rank, failure.code) == (None, 67)
    assert (
        "all 8 ranks wait for their GPUs or for each other: 7 in backward (__init__.py:9) at t.py:41, 1 in item (t.py:55)"
        in (failure.message)
    )
    said = "; all its 8 ranks have made all_reduce [9] Float at t.py:4 (call 100 of the default group), which has not completed"
    assert failure.message.endswith(said) is recorder


def test_on_cpus_the_rank_with_fewer_steps_is_blamed_as_before():
    calls = (call(1), call(2))
    failure = asked(*(on_gpu(rank, calls) for rank in range(4)))
    assert failure.rank == 0
