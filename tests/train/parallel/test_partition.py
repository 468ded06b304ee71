"""The partition solver against brute force, and what it refuses."""

import re
from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun_train.common.errors import UserError
from algorun_train.parallel.partition.costs import SegmentProfile
from algorun_train.parallel.partition.layers_to_stages import MIB
from algorun_train.parallel.partition.memory import MemoryModel, moments_of, preallocated
from algorun_train.parallel.partition.simulated_search import every_partition, search_by_cost
from tests.conftest import examples
from tests.train.parallel.shapes import Costs, chosen, even

MEMORIES = st.builds(MemoryModel, st.integers(0, 2), preallocated=st.booleans(), recompute=st.booleans())


@st.composite
def models(draw, least: int = 1, most: int = 8):
    # Whole milliseconds and small bytes: ties and limits that bind are likely.
    numbers = st.tuples(*[st.integers(0, 9)] * 5)
    rows = draw(st.lists(numbers, min_size=least, max_size=most))
    found = [segment(place, *row) for place, row in enumerate(rows)]
    users = st.sets(st.integers(0, len(rows) - 1), min_size=2)
    for number in range(draw(st.integers(0, 3)) if len(rows) > 1 else 0):
        found = tied(found, f"weight{number}", draw(users), draw(st.integers(0, 30)))
    return found


def tied(segments: list[SegmentProfile], name: str, users: Collection[int], size: int) -> list[SegmentProfile]:
    """The segments with one more weight, which those with the numbers `users` all use."""
    return [
        replace(each, parameter_bytes=each.parameter_bytes + size, shared=(*each.shared, (name, size)))
        if place in users
        else each
        for place, each in enumerate(segments)
    ]


def segment(
    place: int, forward_ms: int, backward_ms: int, saved: int, parameters: int, boundary: int
) -> SegmentProfile:
    name = f"unit{place}"
    return SegmentProfile(name, (name,), forward_ms / 1e3, backward_ms / 1e3, saved, parameters, boundary)


def step(decision, microbatches: int) -> int:
    """sum t_s + (M - 1) max t_s in milliseconds."""
    times = [round((f + b) * 1e3) for f, b in zip(decision.forward_s, decision.backward_s, strict=True)]
    return sum(times) + (microbatches - 1) * max(times)


@examples(300)
@given(
    models(),
    st.integers(1, 4),
    st.integers(1, 6),
    st.sampled_from(["gpipe", "1f1b"]),
    st.integers(0, 400),
    st.booleans(),
    MEMORIES,
)
def test_equal_to_brute_force(segments, ranks, microbatches, name, limit, limited, memory):
    if ranks > len(segments) or (name == "1f1b" and microbatches < ranks):
        return
    costs = Costs(segments, ranks, 1, microbatches, name, memory)
    every = [costs.predict(cut) for cut in every_partition(len(segments), ranks)]
    allowed = [d for d in every if not limited or max(d.rank_bytes) <= limit]
    for optimize in ("speed", "memory"):
        found = costs.best(optimize, limit if limited else None)
        if not allowed:
            assert found is None
            continue
        assert found in allowed  # a valid cut, within the limit

        def price(d, optimize=optimize):
            return step(d, microbatches) if optimize == "speed" else (max(d.rank_bytes), step(d, microbatches))

        assert price(found) == min(map(price, allowed))


@examples(60)
@given(
    models(least=4),
    st.integers(1, 2),
    st.sampled_from(["interleaved", "zbv", "zero-bubble"]),
    st.integers(0, 400),
    MEMORIES,
)
def test_several_stages_a_rank_are_equal_to_brute_force_where_cuts_are_few(segments, ranks, name, limit, memory):
    costs = Costs(segments, ranks, 2, 4, name, memory)
    every = [costs.predict(cut) for cut in every_partition(len(segments), 2 * ranks)]
    allowed = [d for d in every if max(d.rank_bytes) <= limit]
    found = costs.best("speed", limit)
    assert (found is None) == (not allowed)
    if found:
        assert found in allowed
        assert found.step_s == pytest.approx(min(d.step_s for d in allowed))
    assert max(costs.best("memory").rank_bytes) == min(max(d.rank_bytes) for d in every)


@examples(40)
@given(models(least=8, most=12), st.integers(1, 60))
def test_the_search_gives_valid_cuts_none_worse_than_where_it_began(segments, budget):
    costs = Costs(segments, 2, 2, 4, "interleaved")

    def cost(cut):
        return (costs.predict(cut).step_s,)

    start = even(len(segments), 4)
    found = search_by_cost(cost, [start], len(segments), budget)
    assert found[0] == 0
    assert all(a < b for a, b in zip(found, [*found[1:], len(segments)], strict=True))
    assert cost(found) <= cost(start)


def test_the_search_comes_near_the_best_of_many_cuts():
    segments = [segment(k, 1 + (7 * k) % 5, 2 + (3 * k) % 7, 1, 1, 1) for k in range(16)]
    costs = Costs(segments, 2, 2, 8, "interleaved")

    def cost(cut):
        return (costs.predict(cut).step_s,)

    best = min(cost(cut)[0] for cut in every_partition(16, 4))
    found = search_by_cost(cost, [even(16, 4)], 16, 400)  # of 455 cuts; the search does not look at all of them
    assert cost(found)[0] <= 1.02 * best


def test_uneven_segments_are_cut_by_time_and_not_by_number():
    segments = [segment(k, ms, 2 * ms, 0, 0, 0) for k, ms in enumerate([1, 1, 1, 1, 1, 1, 1, 7])]
    even_step = Costs(segments, 2, 1, 8, "1f1b").predict(even(8, 2)).step_s
    found = chosen(segments, 2, 1, 8, "1f1b")
    assert found.begins == (0, 7)
    assert found.step_s == pytest.approx(0.021 * 8 + 0.021)
    assert found.step_s < even_step
    assert chosen(segments[:4], 2, 1, 8, "1f1b").bubble == pytest.approx(1 / 9)


def test_early_stages_of_1f1b_hold_more_microbatches_and_get_fewer_segments():
    segments = [segment(k, 1, 2, 100, 0, 0) for k in range(10)]
    found = chosen(segments, 4, 1, 8, "1f1b", optimize="memory")
    assert found.in_flight == (4, 3, 2, 1)
    assert found.begins == (0, 1, 3, 6)
    assert found.rank_bytes == (400, 600, 600, 400)
    assert sum(found.parameter_bytes) == 0
    assert sorted(chosen(segments, 4, 1, 8, "gpipe", optimize="memory").rank_bytes) == [1600, 1600, 2400, 2400]


def test_bytes_by_hand():
    segments = [segment(0, 1, 1, 10, 100, 7), segment(1, 1, 1, 20, 50, 3), segment(2, 1, 1, 30, 0, 5)]
    found = Costs(segments, 2, 1, 4, "1f1b").predict((0, 1))
    assert found.stage_bytes == (4 * 100 + 2 * 10 + 4 * 3, 4 * 50 + 1 * 50 + 4 * 3)
    lean = Costs(segments, 2, 1, 4, "1f1b", MemoryModel(moments=1, preallocated=False))
    assert lean.predict((0, 2)).stage_bytes == (3 * 150 + 2 * 30, 30)
    both = Costs([*segments, segments[0]], 2, 2, 4, "interleaved", MemoryModel(preallocated=False)).predict(
        (0, 1, 2, 3)
    )
    assert all(r <= both.stage_bytes[k] + both.stage_bytes[k + 2] for k, r in enumerate(both.rank_bytes))


@pytest.mark.parametrize(
    ("begins", "weights", "ranks"),
    [
        ((0, 1, 2, 3), [110, 60, 110, 70], [120, 80]),  # stages 0 and 2 are rank 0's, and both have "a"
        ((0, 1, 3, 4), [110, 170, 60, 60], [170, 180]),  # here the ranks share "a"
    ],
)
def test_a_weight_that_several_segments_use_counts_once_in_a_stage_and_in_a_rank(begins, weights, ranks):
    segments = [segment(place, 1, 1, 0, 10, 0) for place in range(5)]
    segments = tied(tied(segments, "a", {0, 2}, 100), "b", {1, 3, 4}, 50)
    assert [each.parameter_bytes for each in segments] == [110, 60, 110, 60, 60]
    found = Costs(segments, 2, 2, 2, "interleaved", MemoryModel(moments=1)).predict(begins)
    assert list(found.parameter_bytes) == weights
    assert list(found.rank_bytes) == [3 * size for size in ranks]  # weights, gradients, one moment
    alone = Costs(segments, 1, 1, 1, "1f1b", MemoryModel(moments=1)).predict((0,))
    assert alone.parameter_bytes == (5 * 10 + 100 + 50,)


def test_a_limit_that_only_the_users_of_one_weight_together_keep_is_kept():
    """Each of the two stages has room for 100 bytes and 10 more; apart, the users would need twice as many."""
    segments = tied([segment(place, 1, 1, 0, 5, 0) for place in range(4)], "a", {0, 1}, 100)
    costs = Costs(segments, 2, 1, 2, "1f1b", MemoryModel(moments=0, preallocated=False))
    assert costs.best("speed", 2 * 110).begins == (0, 2)
    assert costs.best("speed", 2 * 109) is None


def test_shares_of_a_stage_divide_weights_and_moments_but_not_the_gradients_of_its_microbatches():
    assert MemoryModel(moments=2, shards=4).states(100) == 25 + 100 + 50
    assert MemoryModel(moments=2).states(100) == 100 + 100 + 200
    assert MemoryModel(moments=2, held=0.55).states(100) == 55 + 55 + 110


def test_bytes_and_seconds_by_hand_where_activations_are_computed_again():
    segments = [segment(0, 1, 2, 10, 100, 7), segment(1, 3, 4, 20, 50, 3), segment(2, 5, 6, 30, 0, 5)]
    found = Costs(segments, 2, 1, 4, "1f1b", MemoryModel(recompute=True)).predict((0, 1))
    assert found.stage_bytes == found.rank_bytes == (4 * 100 + 10 + 4 * 3, 4 * 50 + 50 + 4 * 3)
    assert [round(s * 1e3) for s in found.backward_s] == [2 + 1, 4 + 6 + 3 + 5]
    assert [round(s * 1e3) for s in found.forward_s] == [1, 3 + 5]
    newer = MemoryModel(preallocated=False, recompute=True)  # buffers only for what is in flight
    assert Costs(segments, 3, 1, 4, "1f1b", newer).predict((0, 1, 2)).stage_bytes == (
        4 * 100 + 10,  # what enters the first stage is the batch's
        4 * 50 + 20 + 2 * 3,
        30 + 1 * 5,
    )
    several = Costs([*segments, segments[0]], 2, 2, 4, "interleaved", MemoryModel(recompute=True)).predict((0, 1, 2, 3))
    assert several.rank_bytes[0] == 4 * 100 + 4 * 3 + 4 * (5 + 7) + max(10, 30)


def test_computing_again_fits_where_keeping_does_not():
    segments = [segment(k, 1, 2, 10 * MIB, 0, 0) for k in range(8)]
    with pytest.raises(UserError, match="the model does not fit: segment unit0 alone needs 80 MiB"):
        chosen(segments, 2, 1, 8, "gpipe", limit_bytes=50 * MIB)
    assert chosen(segments, 2, 1, 8, "gpipe", limit_bytes=50 * MIB, memory=MemoryModel(recompute=True)).begins == (0, 4)


def test_copies_and_buffers():
    assert [moments_of("adamw"), moments_of("adam"), moments_of("sgd", 0.9), moments_of("sgd")] == [2, 2, 1, 0]
    assert MemoryModel(moments=1).states(100) == 300
    assert [preallocated(v) for v in ("2.10.0", "2.13.0+cpu", "2.14.1", "2.15.0a0+git1", "3.0")] == [True] * 3 + [
        False
    ] * 2


def test_even():
    assert even(10, 4) == (0, 2, 5, 7)
    assert even(3, 3) == (0, 1, 2)


def test_refusals():
    segments = [segment(k, 1, 2, 10 * MIB, 0, 0) for k in range(8)]
    lean = MemoryModel(preallocated=False)
    with pytest.raises(UserError, match="9 pipeline ranks x 1 stages need 9 segments; allowed: at most 8"):
        chosen(segments, 9, 1, 16, "1f1b")
    with pytest.raises(UserError, match="option --microbatches: 2 "):
        chosen(segments, 4, 1, 2, "1f1b")
    with pytest.raises(UserError, match="option --optimize: 'size'; allowed: speed, memory"):
        chosen(segments, 2, 1, 4, "1f1b", optimize="size")
    with pytest.raises(UserError, match=r"segment unit0 alone needs 10 MiB; allowed: 9 MiB per rank"):
        chosen(segments, 2, 1, 4, "1f1b", limit_bytes=9 * MIB, memory=lean)
    with pytest.raises(
        UserError,
        match=r"does not fit 2 pipeline ranks with schedule gpipe; allowed: 80 MiB per rank; the smallest partition "
        r"found needs 160 MiB; fix: more ranks, smaller microbatches, or a higher limit",
    ):
        chosen(segments, 2, 1, 4, "gpipe", limit_bytes=80 * MIB, memory=lean)
    assert max(chosen(segments, 2, 1, 4, "gpipe", limit_bytes=160 * MIB, memory=lean).rank_bytes) == 160 * MIB


@pytest.mark.parametrize(("name", "chunks"), [("1f1b", 1), ("interleaved", 2), ("zbv", 2)])
def test_what_a_refusal_says_is_needed_is_enough(name, chunks):
    limit = 20
    segments = [segment(k, 1, 2, MIB * (1 + k % 5), 2000, 2000) for k in range(20)]
    with pytest.raises(UserError, match="does not fit 4 pipeline ranks ") as refused:
        chosen(segments, 4, chunks, 16, name, limit_bytes=limit * MIB)
    needed = float(re.search(r"the smallest partition found needs ([0-9.]+) MiB", str(refused.value))[1])
    assert needed > limit
    largest = max(chosen(segments, 4, chunks, 16, name, limit_bytes=round((needed + 0.5) * MIB)).rank_bytes)
    assert largest <= (needed + 0.5) * MIB


def test_a_large_model_over_many_ranks():
    segments = [segment(k, 1 + k * 7 % 13, 2 + k * 5 % 17, k % 11, k % 7, k % 5) for k in range(1000)]
    found = chosen(segments, 64, 1, 128, "1f1b")
    assert found.begins[0] == 0
    assert len(set(found.begins)) == len(found.stage_bytes) == 64
    largest = max(found.rank_bytes)
    tight = chosen(segments, 64, 1, 128, "1f1b", limit_bytes=largest * 2 // 3)
    assert max(tight.rank_bytes) <= largest * 2 // 3
    assert tight.step_s >= found.step_s
