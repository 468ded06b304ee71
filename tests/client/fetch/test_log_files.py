"""The lines of a job as files."""

from __future__ import annotations

import resource

import pytest

from algorun_client.fetch.log_files import write_logs
from algorun_client.follow.log_reader import LogLine


@pytest.fixture
def few_files():
    """As many open files as a shell allows in relation to the streams below."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_more_streams_than_a_process_may_open_files(tmp_path, few_files):
    def batch(at: int) -> list[LogLine]:
        return [LogLine(f"algo-{n}", f"algo-{n}-1", at, f"line {at}\nof two") for n in range(300)]

    assert write_logs([batch(5), batch(7)], tmp_path / "logs") == 300
    assert (tmp_path / "logs" / "algo-299-1.log").read_text() == "line 5\nof two\nline 7\nof two\n"
    assert (tmp_path / "logs" / "algo-299-1.times").read_text() == "5\n5\n7\n7\n"


def test_a_text_that_is_no_unicode_is_kept_readable(tmp_path):
    assert write_logs([[LogLine("algo-1", "algo-1-1", 1, "half \ud83d")]], tmp_path / "logs") == 1
    assert (tmp_path / "logs" / "algo-1-1.log").read_text() == "half \\ud83d\n"
