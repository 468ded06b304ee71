"""Orders of the schedules: what torch runs, what the papers promise, and what is refused."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorun_train.common.errors import UserError
from algorun_train.parallel import schedules
from algorun_train.parallel.run import torch_schedules
from algorun_train.parallel.schedules import Action
from tests.conftest import examples

COUNTS = {  # (ranks, chunks) of the differential test
    "gpipe": [(1, 1), (2, 1), (4, 1), (5, 1)],
    "1f1b": [(1, 1), (2, 1), (4, 1), (5, 1)],
    "interleaved": [(1, 2), (2, 2), (4, 2), (3, 3), (4, 4)],
    "zero-bubble": [(1, 2), (2, 1), (4, 1), (2, 2), (4, 2), (3, 3)],
    "zbv": [(1, 2), (2, 2), (3, 2), (4, 2), (6, 2)],
    "dualpipev": [(1, 2), (2, 2), (3, 2), (4, 2), (6, 2)],
}


class RecordingStage:
    """Stands where torch expects a PipelineStage, sends nothing and writes down what it is told to compute."""

    def __init__(self, index: int, stages: int, rank: int, ranks: int, record: list[Action]) -> None:
        self.stage_index, self.num_stages, self.group_rank, self.group_size = index, stages, rank, ranks
        self.is_first, self.is_last, self.has_backward = index == 0, index == stages - 1, True
        self.submod, self.group, self.device = None, None, "cpu"
        self.args_recv_info, self.grad_recv_info, self.act_send_info = {0: ()}, {0: ()}, {}
        self.record = record

    def forward_one_chunk(self, microbatch, *args, **kwargs):
        self.record.append(Action("F", self.stage_index, microbatch))

    def backward_one_chunk(self, microbatch, loss=None, full_backward=True, last_backward=False):
        self.record.append(Action("B" if full_backward else "I", self.stage_index, microbatch))

    def backward_weight_one_chunk(self, microbatch, last_backward=False):
        self.record.append(Action("W", self.stage_index, microbatch))

    def __getattr__(self, name):
        """What else a release of torch calls moves data about and has no part in the order."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: [] if name.endswith("_ops") else None


def executed_by_torch(name: str, ranks: int, chunks: int, microbatches: int) -> list[list[Action]]:
    """What torch's own loop computes on each rank; only its sends and receives are left out."""
    single = name in torch_schedules.SINGLE
    make = (torch_schedules.SINGLE if single else torch_schedules.MULTI)[name]
    orders = []
    for rank in range(ranks):
        record: list[Action] = []
        held = schedules.stages_of(name, ranks, rank, chunks)
        stages = [RecordingStage(s, ranks * chunks, rank, ranks, record) for s in held]
        library = make(stages[0] if single else stages, microbatches)
        library._initialize_stage = library._initialize_stages = lambda *args, **kwargs: None
        library._step_microbatches([()] * microbatches, [{}] * microbatches)
        orders.append(record)
    return orders


# `make test` keeps each schedule, each kind of model and each kind of layout, but not all of their combinations.
@pytest.mark.slow(but=["1f1b", "interleaved", "zbv"])
@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_the_orders_are_what_torch_executes(name):
    if schedules.SCHEDULES[name].v_shaped and torch.__version__.startswith("2.10."):
        pytest.skip("torch 2.10 has them, but on Gloo they fail")
    compared = 0
    for ranks, chunks in COUNTS[name]:
        for microbatches in schedules.allowed_microbatches(
            name, ranks, ranks * chunks, [*range(1, 10), 12, 17], torch.__version__
        ):
            mine = schedules.orders(name, ranks, chunks, microbatches)
            assert [list(order) for order in mine] == executed_by_torch(name, ranks, chunks, microbatches)
            compared += 1
    assert compared > 10


@examples(60)
@given(
    st.sampled_from(sorted(schedules.SCHEDULES)), st.integers(1, 6), st.integers(1, 4), st.integers(1, 20), st.data()
)
def test_everything_is_computed_once_and_nobody_waits_for_ever(name, ranks, chunks, microbatches, data):
    low, high = schedules.SCHEDULES[name].chunks
    chunks = max(low, min(chunks, high or chunks))
    if not schedules.allowed_microbatches(name, ranks, ranks * chunks, [microbatches]):
        return
    orders = schedules.orders(name, ranks, chunks, microbatches)
    done = Counter()
    for rank, order in enumerate(orders):
        assert {a.stage for a in order} == set(schedules.stages_of(name, ranks, rank, chunks))
        for kind, stage, microbatch in order:
            for half in "IW" if kind == "B" else kind:
                done[half, stage, microbatch] += 1
    every = [(k, s, m) for k in "FIW" for s in range(ranks * chunks) for m in range(microbatches)]
    assert done == Counter(every)
    costs = st.lists(st.floats(0.01, 3), min_size=ranks * chunks, max_size=ranks * chunks)
    forward, backward = data.draw(costs), data.draw(costs)
    timeline = schedules.simulate(orders, forward, backward)
    assert [[s.action for s in spans] for spans in timeline.ranks] == [list(order) for order in orders]
    busy = sum(s.end_s - s.begin_s for spans in timeline.ranks for s in spans)
    assert busy == pytest.approx(microbatches * sum(forward + backward))
    assert -1e-9 <= timeline.bubble < 1
    assert timeline.step_s == pytest.approx(schedules.Simulator(orders).step_s(forward, backward))


def bubble(name: str, ranks: int, chunks: int, microbatches: int) -> float:
    """Of equal stages whose backward pass takes twice the forward pass."""
    stages = ranks * chunks
    return schedules.simulate(
        schedules.orders(name, ranks, chunks, microbatches), [1.0] * stages, [2.0] * stages
    ).bubble


@given(st.integers(1, 8), st.integers(1, 24))
def test_the_bubble_of_gpipe_and_1f1b(ranks, microbatches):
    share = (ranks - 1) / (microbatches + ranks - 1)
    assert bubble("gpipe", ranks, 1, microbatches) == pytest.approx(share)
    if microbatches >= ranks:
        assert bubble("1f1b", ranks, 1, microbatches) == pytest.approx(share)


@examples(50)
@given(st.integers(1, 6), st.integers(2, 4), st.integers(1, 4))
def test_the_bubble_of_interleaved(ranks, chunks, rounds):
    microbatches = rounds * ranks
    share = (ranks - 1) / (chunks * microbatches + ranks - 1)
    assert bubble("interleaved", ranks, chunks, microbatches) == pytest.approx(share)


@pytest.mark.parametrize("name", ["zero-bubble", "zbv", "dualpipev"])
def test_a_split_backward_pass_leaves_less_idle_than_1f1b(name):
    chunks = schedules.SCHEDULES[name].chunks[0]
    assert bubble(name, 4, chunks, 8) < bubble("1f1b", 4, 1, 8)


def in_flight(orders):
    """The most microbatches, counted once per stage, that each rank has in flight."""
    return schedules.peak_sizes(orders, [1] * (1 + max(action.stage for order in orders for action in order)))


def test_in_flight_of_four_ranks_and_eight_microbatches():
    assert in_flight(schedules.orders("1f1b", 4, 1, 8)) == (4, 3, 2, 1)
    assert in_flight(schedules.orders("gpipe", 4, 1, 8)) == (8, 8, 8, 8)
    assert in_flight(schedules.orders("simple", 4, 1, 8)) == (8, 8, 8, 8)


@given(st.integers(1, 8), st.integers(1, 24), st.integers(2, 4))
def test_in_flight_of_any_number(ranks, microbatches, chunks):
    assert set(in_flight(schedules.orders("gpipe", ranks, 1, microbatches))) == {microbatches}
    if microbatches >= ranks:
        found = in_flight(schedules.orders("1f1b", ranks, 1, microbatches))
        assert found == tuple(min(microbatches, ranks - s) for s in range(ranks))
    orders = schedules.orders("interleaved", ranks, chunks, ranks * chunks)  # whole rounds
    peaks = [(chunks - 1) * ranks + 2 * (ranks - r - 1) + 1 for r in range(ranks)]
    assert in_flight(orders) == tuple(min(peak, chunks * ranks * chunks) for peak in peaks)


def test_what_a_rank_holds_is_counted_by_the_size_of_each_stage():
    orders = schedules.orders("interleaved", 2, 2, 4)
    assert schedules.in_flight_by_stage(orders) == (4, 3, 2, 1)
    assert schedules.peak_sizes(orders, [1, 0, 0, 0]) == (4, 0)
    both = schedules.peak_sizes(orders, [10, 10, 1, 1])
    assert both[0] < 4 * 10 + 4 * 1  # the peaks of two stages of a rank do not fall together


def test_where_stages_lie():
    assert [schedules.stages_of("interleaved", 4, r, 2) for r in range(4)] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert [schedules.stages_of("zbv", 4, r, 2) for r in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    assert schedules.rank_of("zbv", 3, 2) == (0, 1, 2, 2, 1, 0)
    assert schedules.rank_of("1f1b", 3, 1) == (0, 1, 2)


def test_a_single_microbatch_passes_through_one_stage_after_the_other():
    assert schedules.simulate(schedules.orders("gpipe", 3, 1, 1), [1] * 3, [2] * 3).step_s == pytest.approx(9)
    assert schedules.simulate(schedules.orders("zbv", 1, 2, 1), [1] * 2, [2] * 2).step_s == pytest.approx(6)


def test_orders_that_wait_for_each_other_are_refused():
    orders = [[Action("F", 0, 0), Action("B", 0, 0)], [Action("B", 1, 0), Action("F", 1, 0)]]
    with pytest.raises(ValueError, match="waits for ever; next of the ranks that wait: B0 stage 0, B0 stage 1"):
        schedules.simulate(orders, [1, 1], [1, 1])


@pytest.mark.parametrize(
    ("name", "ranks", "stages", "microbatches", "message"),
    [
        ("1f1b", 4, 4, 3, "option --microbatches: 3 .* allowed: at least 4, the number of stages; fix: --microbatches 4"),
        ("dualpipev", 4, 8, 7, "option --microbatches: 7 .* allowed: at least 8"),
        ("interleaved", 4, 8, 9, r"option --microbatches: 9 .* a multiple of the rounds .*= 2\); fix: --microbatches 8 or 10"),
        ("zero-bubble", 4, 4, 9, "fix: --microbatches 8 or 10"),
        ("gpipe", 2, 2, 0, "option --microbatches: 0 .* at least 1"),
        ("interleaved", 4, 4, 4, "4 stages on 4 pipeline ranks; allowed: 2 or more per rank, .* fix: 8 stages"),
        ("zbv", 2, 6, 4, "6 stages on 2 pipeline ranks; allowed: 2 per rank, .* fix: 4 stages"),
        ("1f1b", 2, 3, 4, "3 stages on 2 pipeline ranks; allowed: 1 per rank, .* fix: 2 stages"),
        ("pipedream", 2, 2, 4, "option --schedule: 'pipedream' .* allowed: gpipe, 1f1b, .*, simple"),
    ],
)  # fmt: skip
def test_refusals_state_the_rule_and_the_fix(name, ranks, stages, microbatches, message):
    with pytest.raises(UserError, match=message):
        schedules.rules(name, ranks, stages, microbatches)


@pytest.mark.parametrize("name", ["zbv", "dualpipev"])
def test_torch_2_10_has_no_v_shaped_schedules(name):
    with pytest.raises(UserError, match=rf"{name} with torch 2\.10; allowed: gpipe, 1f1b, interleaved, zero-bubble"):
        schedules.rules(name, 2, 4, 8, "2.10.0+cpu")
    schedules.rules(name, 2, 4, 8, "2.11.0")


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zero-bubble", "dualpipev", "gpipe", "zbv"])
def test_the_rules_are_those_of_torch(name):
    if schedules.SCHEDULES[name].v_shaped and torch.__version__.startswith("2.10."):
        pytest.skip("torch 2.10 has them, but on Gloo they fail")
    ranks, chunks = 3, schedules.SCHEDULES[name].chunks[0]
    for microbatches in range(1, 16):
        allowed = bool(schedules.allowed_microbatches(name, ranks, ranks * chunks, [microbatches], torch.__version__))
        try:
            executed_by_torch(name, ranks, chunks, microbatches)
        except ValueError:
            assert not allowed
        else:
            assert allowed
