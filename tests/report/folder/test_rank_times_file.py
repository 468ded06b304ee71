"""What is read of the times of ranks, and what is left out of a damaged or foreign file."""

from __future__ import annotations

import json

import pytest

from algorun_report.folder import rank_times_file
from algorun_report.folder.log_files import ResultFolder
from algorun_report.folder.rank_times_file import read_rank_times
from algorun_report.folder.read import read_report
from tests.report.job_folders import BEGIN, write_job, write_rank_times

HEAD = {"format": 1, "host": "algo-1", "activities": ["data", "exchange"]}
START = {"attempt": 1, "time": 100.0, "ranks": [0, 1]}


def written(folder, *lines, name="rank_times-algo-1.jsonl"):
    """The folder with a file of these lines; a text stands for itself."""
    (folder / name).write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines))
    return [ResultFolder(folder)]


def times(moment, first, second, steps=(1, 1)):
    return {"steps": list(steps), "time": moment, "seconds": [first, second]}


def test_two_reports_are_a_window_and_a_restart_is_a_gap(tmp_path):
    lines = (
        *(HEAD, START, times(110.0, [1, 1], [0, 0]), times(120.0, [2, 6], [0, 10], (5, 4))),
        *({**START, "attempt": 2, "time": 130.0}, times(140.0, [1, 1], [1, 1]), times(150.0, [1, 1], [6, 6])),
        {"slow": "slow: rank 1", "time": 125.5},
    )
    found = read_rank_times(written(tmp_path, *lines))
    (host,) = found.since(100.0).hosts
    assert (host.host, host.ranks) == ("algo-1", (0, 1))
    assert [(each.begin, each.end, each.steps) for each in host.windows] == [(10, 20, 4), (40, 50, 0)]
    assert host.windows[0].shares == ((0.1, 0.5), (0, 1))
    assert host.windows[1].shares == ((0, 0), (0.5, 0.5))
    assert found.since(100.0).slow == ((25.5, "slow: rank 1"),)
    assert found.begins == {1: 100.0, 2: 130.0}
    assert found.unreadable == ()


@pytest.mark.parametrize(
    "line",
    [
        '{"steps": [1, 1], "time": 130.0, "seco',
        "null",
        times(130.0, [1], [1]),
        times(130.0, [1, "a"], [1, 1]),
        times(True, [1, 1], [1, 1]),
        {"steps": [], "time": 130.0, "seconds": [[1, 1], [1, 1]]},
        '{"steps": [1, 1], "time": NaN, "seconds": [[1, 1], [1, 1]]}',
        {**START, "ranks": [7]},
        {"other": 1, "time": 3.0},
    ],
)
def test_a_damaged_line_is_left_out_and_counted(tmp_path, line):
    found = read_rank_times(
        written(tmp_path, HEAD, START, times(110.0, [0, 0], [0, 0]), line, times(120.0, [1, 1], [2, 2]))
    )
    (host,) = found.activities.hosts
    assert [each.shares for each in host.windows] == [((0.1, 0.1), (0.2, 0.2))]
    assert found.unreadable == ("rank_times-algo-1.jsonl: 1 lines that cannot be read are left out.",)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ((), "it is empty"),
        (("loss,step", "1,2"), "its first line is not that of the launcher"),
        (({**HEAD, "format": 2}, START), "its first line is not that of the launcher"),
    ],
)
def test_a_file_of_another_kind_is_left_out_by_name(tmp_path, lines, why):
    found = read_rank_times(written(tmp_path, *lines))
    assert found.unreadable == (f"rank_times-algo-1.jsonl is left out: {why}.",)
    assert found.activities.hosts == ()


def test_hosts_that_name_other_activities_are_left_out(tmp_path):
    written(tmp_path, HEAD, START, times(110.0, [0, 0], [0, 0]), times(120.0, [1, 1], [2, 2]))
    other = {**HEAD, "host": "algo-2", "activities": ["sleep"]}
    found = read_rank_times(written(tmp_path, other, name="rank_times-algo-2.jsonl"))
    assert [each.host for each in found.activities.hosts] == ["algo-1"]
    assert found.unreadable == ("The times of algo-2 are left out: its activities are others.",)


def test_a_fetched_job_has_the_times_of_all_hosts_on_the_axis_of_its_curves(tmp_path):
    folder = write_job(tmp_path / "job", hosts=3)
    (folder / "output" / "logs").mkdir(parents=True)
    write_rank_times(folder / "output", hosts=3, ranks=2, reports=5)
    report = read_report(folder)
    assert [(each.host, each.ranks) for each in report.activities.hosts] == [
        ("algo-1", (0, 1)),
        ("algo-2", (2, 3)),
        ("algo-3", (4, 5)),
    ]
    assert report.activities.hosts[0].windows[0].begin == 145.0
    assert report.created == BEGIN
    assert [(each.number, each.begin) for each in report.attempts] == [(1, BEGIN), (2, BEGIN + 220)]


def test_a_simulated_job_begins_with_its_first_attempt(tmp_path):
    for host in ("algo-1", "algo-2"):
        (tmp_path / host / "output" / "data" / "logs").mkdir(parents=True)
    write_rank_times(tmp_path / "algo-1" / "output" / "data", hosts=1, begin=1000.0)
    report = read_report(tmp_path)
    assert report.created == 1000.0
    assert report.activities.hosts[0].windows[0].begin == 5.0


def test_of_very_many_reports_neighbours_are_merged_and_no_second_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_times_file, "MOST_WINDOWS", 100)
    lines = [times(110.0 + n, [0.25 * n, 0], [0, n], (n, n)) for n in range(500)]
    found = read_rank_times(written(tmp_path, HEAD, START, *lines))
    (host,) = found.activities.hosts
    assert len(host.windows) <= 100
    assert sum(each.reports for each in host.windows) == sum(each.steps for each in host.windows) == 499
    assert (host.windows[0].begin, host.windows[-1].end) == (110.0, 609.0)
    assert {each.shares for each in host.windows} == {((0.25, 0), (0, 1))}


def test_a_report_before_any_attempt_is_left_out(tmp_path):
    found = read_rank_times(
        written(tmp_path, HEAD, *({"steps": [n], "time": 100.0 + n, "seconds": []} for n in range(3)))
    )
    assert found.activities.hosts == ()
    assert found.unreadable == ("rank_times-algo-1.jsonl: 3 lines that cannot be read are left out.",)
