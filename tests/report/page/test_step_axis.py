"""Curves against steps and epochs: which there are, and what a restart does to them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun_report.page.charts import counted
from algorun_report.page.render import render
from algorun_report.run_report import Axis, Metric, MetricPlace, ReportedAttempt, RunReport, Series
from tests.conftest import examples

from .pages import chart


def metric(*numbers: float, place: MetricPlace = MetricPlace.STEP, epochs: tuple[float, ...] = ()) -> Metric:
    count = len(numbers)
    series = Series("algo-1", range(count), [float(n) for n in range(count)], numbers, epochs or (math.nan,) * count)
    return Metric(name="loss", regex="", series=(series,), place=place)


def drawn(found: Metric, restarts: int = 0) -> list[tuple[float, float]] | None:
    series = counted(found, restarts)
    return None if series is None else list(zip(series[0].x, series[0].values, strict=True))


def test_values_stand_at_their_steps():
    assert drawn(metric(50, 100, 150)) == [(50, 0), (100, 1), (150, 2)]
    assert drawn(metric(1, 2, 2.5, place=MetricPlace.EPOCH)) == [(1, 0), (2, 1), (2.5, 2)]
    assert drawn(metric(place=MetricPlace.NONE)) is None


def test_after_a_restart_the_later_values_of_repeated_steps_count():
    assert drawn(metric(10, 20, 30, 20, 30, 40), restarts=1) == [(10, 0), (20, 3), (30, 4), (40, 5)]


@pytest.mark.parametrize(
    ("found", "restarts"),
    [
        (metric(10, 20, 30, 10, 20, 30), 0),
        (metric(10, 20, 10, 20, 10, 20), 1),
        (metric(10, 20, 10, 20, epochs=(1, 1, 2, 2)), 3),
        (metric(5, 5), 0),
        (metric(0, 0, 0, 1, 1, place=MetricPlace.EPOCH), 0),
    ],
    ids=["no-restart", "more-than-restarts", "begins-again-in-each-epoch", "twice", "many-lines-of-an-epoch"],
)
def test_numbers_that_do_not_count_through_the_job_are_no_axis(found, restarts):
    assert drawn(found, restarts) is None


@given(st.lists(st.integers(0, 20), max_size=40), st.integers(0, 40))
@examples(100)
def test_an_axis_never_goes_back_and_keeps_the_last_value(numbers, restarts):
    found = drawn(metric(*numbers), restarts)
    if found:
        places = [place for place, _ in found]
        assert places == sorted(set(places))
        assert found[-1] == (numbers[-1], len(numbers) - 1)


def test_a_chart_over_steps_has_the_same_values_over_time():
    report = RunReport(job="a", axis=Axis.TIME, metrics=(metric(50, 100),), attempts=(ReportedAttempt(1, ""),))
    page = render(report)
    found = chart(page, "loss")
    assert (found["axis"], found["x"], found["columns"]) == ("step", [50, 100], [[0, 1]])
    assert (found["over_time"]["axis"], found["over_time"]["x"]) == ("time", [0, 1])
    assert '<select id="axis">' in page


def test_without_times_there_is_nothing_to_choose():
    page = render(RunReport(job="a", axis=Axis.ORDER, metrics=(metric(50, 100),)))
    assert (chart(page, "loss")["axis"], chart(page, "loss")["over_time"]) == ("step", None)
    assert '<select id="axis">' not in page


def test_steps_that_begin_again_are_said_to_be_no_axis():
    page = render(RunReport(job="a", axis=Axis.TIME, metrics=(metric(1, 2, 1, 2),)))
    assert chart(page, "loss")["axis"] == "time"
    assert "the steps of its lines do not count through the job, so its curve is over time." in page
