"""Stages nearest to a wished placement: equal to brute force, and nothing changes where the wish is in order."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun_smdistributed.signatures import manual_order
from algorun_smdistributed.signatures.manual_order import nearest
from algorun_train.parallel.partition.simulated_search import every_partition
from tests.conftest import examples


@st.composite
def wishes(draw, most: int = 4):
    """Segments of units, and the number of partitions; few sizes, so that ties are likely."""
    partitions = draw(st.integers(1, most))
    unit = st.tuples(st.integers(0, partitions - 1), st.sampled_from([0, 0, 1, 2, 7]))
    segments = st.lists(st.lists(unit, min_size=1, max_size=3), min_size=partitions, max_size=7)
    return draw(segments), partitions


def elsewhere(segments, begins, order):
    """(bytes, units) that do not lie where they were wished."""
    ends = [*begins[1:], len(segments)]
    rows = zip(begins, ends, order, strict=True)
    moved = [
        size for begin, end, here in rows for units in segments[begin:end] for wished, size in units if wished != here
    ]
    return sum(moved), len(moved)


@examples(300)
@given(wishes())
def test_equal_to_brute_force(wish):
    segments, partitions = wish
    found = nearest(segments, partitions)
    orders = list(itertools.permutations(range(partitions)))
    costs = {
        (order, begins): elsewhere(segments, begins, order)
        for order in orders
        for begins in every_partition(len(segments), partitions)
    }
    least = min(costs.values())
    assert costs[found.order, found.begins] == least
    first = next(order for order in orders if any(c == least for (o, _), c in costs.items() if o == order))
    assert found.order == first  # that of the numbers, where it is as good


@st.composite
def runs(draw):
    """Segments that are in order, in some numbering: the stages' begins, their partitions, and the segments."""
    partitions = draw(st.integers(1, 10))
    order = draw(st.permutations(range(partitions)))
    segments, begins = [], []
    for partition in order:
        begins.append(len(segments))
        unit = st.tuples(st.just(partition), st.integers(0, 2**40))
        segments += draw(st.lists(st.lists(unit, min_size=1, max_size=2), min_size=1, max_size=3))
    return segments, tuple(begins), tuple(order)


@examples(60)
@given(runs())
def test_what_is_in_order_stays_as_it_is(made):
    """In whatever numbering; of more partitions than every order is looked at too."""
    segments, begins, order = made
    assert nearest(segments, len(order)) == manual_order.Placement(begins, order)


def test_the_smaller_side_moves():
    """Calls of 0, 1, 0: the last goes to 1, unless it is the larger of the two; then 1 runs first and the first goes."""
    assert nearest([[(0, 5)], [(1, 9)], [(0, 4)]], 2) == manual_order.Placement((0, 1), (0, 1))
    assert nearest([[(0, 4)], [(1, 9)], [(0, 5)]], 2) == manual_order.Placement((0, 2), (1, 0))


def test_units_without_parameters_decide_ties():
    assert nearest([[(0, 0)], [(1, 0)], [(0, 0), (0, 0)], [(1, 0)]], 2).begins == (0, 3)


def test_as_many_segments_as_partitions_are_needed():
    with pytest.raises(ValueError, match="3 partitions of 2 segments"):
        nearest([[(0, 1)], [(1, 1)]], 3)
