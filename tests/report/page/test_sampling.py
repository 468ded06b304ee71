"""Which points of a series a chart gets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from algorun_report.page.sampling import sample
from algorun_report.run_report import Series
from tests.conftest import examples

NUMBERS = st.floats(-1e6, 1e6)
SERIES = st.lists(st.tuples(st.floats(0, 1e4).map(lambda x: round(x, 2)), NUMBERS), max_size=60).map(sorted)


def test_few_values_are_all_there_at_their_places():
    points = sample([Series("a", [1, 2, 4], [0.1, 0.2, 0.3]), Series("b", [2, 3], [5.0, 6.0])], 10)
    assert points.x == (1, 2, 3, 4)
    assert points.columns == ((0.1, 0.2, None, 0.3), (None, 5.0, 6.0, None))
    assert points.buckets == 0


def test_two_values_of_the_same_time_are_both_there():
    points = sample([Series("a", [1, 1, 2], [7.0, 8.0, 9.0]), Series("b", [1], [5.0])], 10)
    assert points.x == (1, 1, 2)
    assert points.columns == ((7.0, 8.0, 9.0), (5.0, None, None))


def test_a_single_peak_among_many_values_is_drawn():
    values = [1.0] * 100_000
    values[77_777] = 9.0
    points = sample([Series("a", range(100_000), values)], 400)
    assert points.buckets == 200
    assert len(points.x) == 400
    at = points.columns[0].index(9.0)
    assert abs(points.x[at] - 77_777) <= 500  # within its bucket


def test_the_smallest_and_the_largest_of_a_bucket_keep_their_order():
    falling = sample([Series("a", [0, 1, 2, 3], [4.0, 3.0, 2.0, 1.0])], 2)
    assert falling.columns == ((4.0, 1.0),)
    rising = sample([Series("a", [0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0])], 2)
    assert rising.columns == ((1.0, 4.0),)


@examples(200)
@given(st.lists(SERIES, min_size=1, max_size=4), st.integers(2, 40))
def test_no_value_is_invented_and_no_extreme_is_lost(lists, most):
    series = [Series("s", [x for x, _ in each], [y for _, y in each]) for each in lists]
    points = sample(series, most)
    assert list(points.x) == sorted(points.x)
    assert len(points.x) <= most
    for each, column in zip(series, points.columns, strict=True):
        assert len(column) == len(points.x)
        drawn = [value for value in column if value is not None]
        assert set(drawn) <= set(each.values)
        if points.buckets == 0:
            assert sorted(drawn) == sorted(each.values)
        elif each.values:
            assert (min(drawn), max(drawn)) == (min(each.values), max(each.values))
