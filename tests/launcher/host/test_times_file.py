"""The file of what a host's ranks did over time: it stays small and in order, and a disk that fails costs one line."""

from __future__ import annotations

import itertools
import json
import time

import pytest

from algorun.host.measuring import times_file
from algorun.host.measuring.times_file import TimesFile
from algorun.timing.activities import NAMES
from algorun.timing.rank_times import RankTimes

NAME = "rank_times-algo-2.jsonl"


def report(at: float, steps: int = 1) -> tuple[RankTimes, ...]:
    return tuple(RankTimes(rank, 0, steps, at, (steps / 3,) * len(NAMES)) for rank in (2, 3))


def read(folder):
    return [json.loads(line) for line in (folder / NAME).read_text().splitlines()]


def test_the_head_the_attempts_the_reports_and_the_verdicts_are_lines(tmp_path):
    (tmp_path / NAME).write_text("of an earlier job\n")
    file = TimesFile(tmp_path, "algo-2", pytest.fail)
    begin = time.time()
    file.attempt(1, [2, 3])
    file.report(report(time.monotonic() + 5, 7))
    file.slow("slow: rank 2")
    head, attempt, times, slow = read(tmp_path)
    assert head == {"format": 1, "host": "algo-2", "activities": list(NAMES)}
    assert (attempt["attempt"], attempt["ranks"]) == (1, [2, 3])
    assert begin - 1 < attempt["time"] < begin + 1
    assert 4 < times["time"] - begin < 6
    assert times["steps"] == [7, 7]
    assert times["seconds"] == [[2.333] * len(NAMES)] * 2
    assert slow["slow"] == "slow: rank 2"


def test_a_long_job_keeps_the_first_and_the_last_report_and_few_between(tmp_path, monkeypatch):
    monkeypatch.setattr(times_file, "MOST_REPORTS", 16)
    file = TimesFile(tmp_path, "algo-2", pytest.fail)
    file.attempt(1, [2, 3])
    for step in range(1, 1000):
        file.report(report(10.0 * step, step))
    file.attempt(2, [2, 3])
    file.report(report(10_000.0, 1))
    file.report(report(10_010.0, 2), last=True)
    lines = read(tmp_path)
    steps = [each["steps"][0] for each in lines if "steps" in each]
    assert [each["attempt"] for each in lines if "attempt" in each] == [1, 2]
    assert len(steps) <= 16 + 2
    first = steps[: steps.index(max(steps)) + 1]
    assert first[0] == 1
    assert len({b - a for a, b in itertools.pairwise(first)}) == 1, "they are equally far from each other"
    assert first[-1] > 800
    assert steps[-1] == 2, "the last one of an attempt is kept"


def test_a_file_that_cannot_be_written_is_one_warning(tmp_path):
    (tmp_path / NAME).mkdir()
    warnings: list[str] = []
    file = TimesFile(tmp_path, "algo-2", warnings.append)
    file.attempt(1, [2, 3])
    for step in range(3):
        file.report(report(float(step), step))
    assert warnings == [f"{tmp_path / NAME}: Is a directory; the times of ranks are not kept any longer"]
