"""Large downloads show how far they are; small ones, and programs, see nothing of it."""

from __future__ import annotations

import io
import time

import pytest

from algorun_client.commands.job_pieces import counted
from algorun_client.common import progress
from algorun_client.common.errors import ApiError
from algorun_client.common.progress import PlainProgress, TerminalProgress
from algorun_client.fetch.folders import fetch_folder
from algorun_client.follow.log_reader import LogLine
from algorun_client.local.folder_store import FolderStore


class Seen:
    """What a progress is told."""

    def __init__(self):
        self.told = []

    def begin(self, part, size):
        self.told.append((part, size))

    def moved(self, size):
        self.told.append(size)

    def end(self):
        self.told.append("end")


def test_the_sizes_of_what_is_missing_are_told(tmp_path):
    store, seen = FolderStore(tmp_path / "root"), Seen()
    store.put("s3://b/state/a", b"a" * 3)
    store.put("s3://b/state/deep/b", b"b" * 5)
    fetch_folder(store, "s3://b/state/", tmp_path / "state", seen, print)
    assert (seen.told[0], sorted(seen.told[1:3]), seen.told[3]) == (("state", 8), [3, 5], "end")
    seen.told.clear()
    store.put("s3://b/state/a", b"aa")
    assert fetch_folder(store, "s3://b/state/", tmp_path / "state", seen, print) == 2
    assert seen.told == [("state", 2), 2, "end"]


def test_after_an_error_no_download_begins(tmp_path, monkeypatch):
    store, seen, asked = FolderStore(tmp_path / "root"), Seen(), []
    for number in range(100):
        store.put(f"s3://b/state/{number:03d}", b"x")

    def download(*_):
        asked.append(1)
        time.sleep(0.01)
        raise ApiError("AccessDenied", "no", "GetObject")

    monkeypatch.setattr(store, "download", download)
    with pytest.raises(ApiError):
        fetch_folder(store, "s3://b/state/", tmp_path / "state", seen, print)
    assert len(asked) < 50
    assert seen.told == [("state", 100), "end"]


def test_elsewhere_there_is_a_line_every_ten_seconds(monkeypatch):
    now, err = [0.0], io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    shown = PlainProgress(err)
    shown.begin("model", 4_000_000)
    for now[0] in range(25):
        shown.moved(100_000)
    shown.end()
    shown.begin("logs", None)
    now[0] += 10
    list(counted([[LogLine("algo-1", "algo-1-1", 1, "x" * 500)]], shown))
    assert err.getvalue() == (
        "algorun: model: 1.1 MB of 4.0 MB\nalgorun: model: 2.1 MB of 4.0 MB\nalgorun: logs: 500 B\n"
    )


def test_a_terminal_shows_a_bar_for_each_part(monkeypatch):
    err = io.StringIO()
    monkeypatch.setattr("sys.stderr", err)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    shown = TerminalProgress()
    for part, size in (("model", 2_000_000), ("logs", None)):
        shown.begin(part, size)
        shown.moved(1_000_000)
        shown.end()
    assert "model" in err.getvalue()
    assert "logs" in err.getvalue()
    assert "1.0/2.0 MB" in err.getvalue()
