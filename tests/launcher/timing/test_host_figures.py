"""The file of a host's figures: what is written is read, and it stays small."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.timing.host_figures import (
    EVERY_S,
    FolderFigures,
    GpuFigures,
    HostFigures,
    from_line,
    interval_s,
    to_line,
    together,
)
from tests.conftest import examples

numbers = st.floats(0, 1e12).map(lambda value: round(value, 3))
sizes = st.integers(0, 1 << 50)


def maybe(strategy):
    return st.none() | strategy


gpus = st.builds(
    GpuFigures, maybe(numbers), maybe(sizes), maybe(sizes), maybe(numbers), maybe(numbers), st.just(("power cap",))
)
folders = st.builds(FolderFigures, st.text(max_size=9), sizes, sizes)


@st.composite
def figures(draw, gpu_count=None):
    count = draw(st.integers(0, 3)) if gpu_count is None else gpu_count
    return HostFigures(
        draw(numbers),
        draw(numbers),
        draw(st.floats(0.5, 700).map(lambda value: round(value, 3))),
        draw(st.text(max_size=9)),
        *draw(st.tuples(maybe(numbers), maybe(st.integers(1, 200)), maybe(sizes), maybe(sizes))),
        *draw(st.tuples(*[maybe(numbers)] * 4)),
        folders=tuple(draw(st.lists(folders, max_size=2))),
        gpus=tuple(draw(st.lists(gpus, min_size=count, max_size=count))),
    )


@examples(200)
@given(figures())
def test_a_line_says_what_it_was_made_of(value):
    line = to_line(value)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert from_line(line) == value


@pytest.mark.parametrize(
    "line",
    ["", "[]", "{}", '{"format": 2}', '{"format": 1}', '{"format":1,"time":1,"start_s":1,"interval_s":1,"host":2}'],
)
def test_other_lines_are_refused(line):
    with pytest.raises(ValueError, match="."):
        from_line(line)


def test_what_is_not_known_is_left_out():
    line = json.loads(to_line(HostFigures(1.0, 2.0, 2.0, "algo-1", cpu=0.5, gpus=(GpuFigures(temperature_c=50.0),))))
    assert line == {
        "format": 1,
        "time": 1.0,
        "start_s": 2.0,
        "interval_s": 2.0,
        "host": "algo-1",
        "cpu": 0.5,
        "folders": [],
        "gpus": [{"temperature_c": 50.0, "throttled": []}],
    }


@examples(200)
@given(st.lists(figures(gpu_count=2), min_size=1, max_size=5))
def test_intervals_together_are_as_long_and_between_their_figures(samples):
    whole = together(samples)
    assert whole.interval_s == pytest.approx(sum(each.interval_s for each in samples))
    assert (whole.time, whole.folders) == (samples[-1].time, samples[-1].folders)
    for name in ("cpu", "network_in", "disk_write"):
        known = [value for each in samples if (value := getattr(each, name)) is not None]
        mean = getattr(whole, name)
        assert (mean is None) == (not known)
        if known:
            assert min(known) <= mean * (1 + 1e-9)
            assert mean <= max(known) * (1 + 1e-9)
    assert whole.gpus[0].throttled == ("power cap",)


def test_equal_weights_are_a_mean():
    samples = [HostFigures(at, at, 2.0, "algo-1", cpu=cpu) for at, cpu in ((2.0, 0.2), (4.0, None), (6.0, 0.6))]
    assert together(samples).cpu == pytest.approx(0.4)


def test_gpus_that_are_no_longer_measured_leave_the_line():
    with_gpu = HostFigures(2.0, 2.0, 2.0, "algo-1", gpus=(GpuFigures(0.5),))
    without = HostFigures(4.0, 4.0, 2.0, "algo-1")
    assert together([with_gpu, without]).gpus == ()
    assert together([without, with_gpu]).gpus == (GpuFigures(0.5),)


def test_a_week_has_some_seven_thousand_lines():
    elapsed = lines = 0.0
    while elapsed < 7 * 24 * 3600:
        elapsed += interval_s(elapsed)
        lines += 1
    assert 6000 < lines < 7500
    assert interval_s(0) == EVERY_S
