"""Long series and many windows get shorter, and what a picture shows of them stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from algorun_report.thinning import Samples
from tests.conftest import examples


@given(st.integers(2, 20), st.lists(st.floats(0, 100), min_size=1, max_size=400))
@examples(50)
def test_samples_stay_few_and_lose_no_peak(most, values):
    found = Samples(most)
    for moment, value in enumerate(values):
        found.add(float(moment), value)
        assert len(found.times) <= 2 * most
    assert (min(found.values), max(found.values)) == (min(values), max(values))
    assert list(found.times) == sorted(found.times)
    assert all(values[int(moment)] == value for moment, value in zip(found.times, found.values, strict=True))
    if len(values) <= 2 * most:
        assert list(found.values) == values
