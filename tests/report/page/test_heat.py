"""The map of what ranks did over time: what is drawn of few and of many values."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun_report.page.heat import MOST_RANKS, MOST_VALUES, heat_map
from algorun_report.page.render import render
from algorun_report.run_report import HostWindows, ReportedActivities, RunReport, Window
from tests.conftest import examples

from .pages import data


def windows(count, ranks, share=0.25):
    return tuple(Window(10.0 * n, 10.0 * n + 10, 3, ((share, 0.0, 0.5),) * ranks) for n in range(count))


def activities(hosts, ranks, count):
    names = ("data", "forward", "exchange")
    return ReportedActivities(
        names,
        tuple(
            HostWindows(f"algo-{n + 1}", tuple(range(n * ranks, (n + 1) * ranks)), windows(count, ranks))
            for n in range(hosts)
        ),
    )


def test_activities_that_nobody_had_are_not_offered():
    found = heat_map(activities(1, 2, 3))
    assert found is not None
    assert found.names == ("data", "exchange")
    assert [name for name, _ in found.choices] == ["own work", "data", "exchange", "what no activity names"]
    (host,) = found.data()["hosts"]
    assert host == {
        "host": "algo-1", "ranks": (0, 1), "begin": [0, 10, 20], "end": [10, 20, 30], "steps": [3, 3, 3],
        "shares": [[[25] * 3, [50] * 3]] * 2,
    }  # fmt: skip
    assert found.note == ""


@pytest.mark.parametrize("nothing", [ReportedActivities(), activities(2, 2, 0)])
def test_without_reports_there_is_no_map_and_the_page_says_so(nothing):
    assert heat_map(nothing) is None
    page = render(RunReport(job="a", activities=nothing))
    assert "What ranks did over time: no rank_times-HOST.jsonl" in page
    assert data(page)["heat"] is None


def test_a_large_job_is_drawn_from_few_values_and_says_so():
    found = heat_map(activities(16, 8, 2000))
    assert found is not None
    shares = [each for host in found.data()["hosts"] for rank in host["shares"] for each in rank]
    assert sum(map(len, shares)) <= MOST_VALUES
    assert {value for each in shares for value in each} == {25, 50}
    assert found.note == "up to 4 reports of a host are drawn as one, with their mean"
    assert len(json.dumps(found.data())) < 1_500_000


def test_of_very_many_ranks_the_first_hosts_are_drawn():
    found = heat_map(activities(100, 8, 30))
    assert found is not None
    assert sum(len(host.ranks) for host in found.hosts) == MOST_RANKS
    assert found.note == "the first 512 of 800 ranks are drawn"


@given(
    st.lists(st.tuples(st.booleans(), st.floats(1, 100), st.floats(0, 1)), min_size=1, max_size=2500),
    st.integers(1, 3),
)
@examples(30)
def test_merged_windows_keep_the_time_of_each_activity_and_the_gaps(pieces, ranks):
    at, made = 0.0, []
    for gap, length, share in pieces:
        begin = at + (7.0 if gap else 0.0)
        at = begin + length
        made.append(Window(begin, at, 1, ((share,),) * ranks))
    found = heat_map(ReportedActivities(("data",), (HostWindows("algo-1", tuple(range(ranks)), tuple(made)),)))
    if found is None:
        assert not any(share for _, _, share in pieces)
        return
    drawn = found.hosts[0].windows

    def spent(of):
        return sum((each.end - each.begin) * each.shares[0][0] for each in of)

    assert spent(drawn) == pytest.approx(spent(made))
    assert sum(each.end - each.begin for each in drawn) == pytest.approx(sum(length for _, length, _ in pieces))
    assert sum(each.steps for each in drawn) == len(pieces)
    assert all(a.end <= b.begin for a, b in itertools.pairwise(drawn))
