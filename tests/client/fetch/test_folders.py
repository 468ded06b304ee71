"""A folder of S3 comes home: only what is new, and never outside of the folder."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from algorun_client.fetch.folders import fetch_folder
from algorun_client.fetch.log_files import write_logs
from algorun_client.fetch.progress import Silent
from algorun_client.follow.log_reader import LogLine
from algorun_client.target.api import StoredObject
from algorun_client.target.folder_store import FolderStore


def test_a_second_fetch_gets_only_what_has_changed(tmp_path, monkeypatch):
    store = FolderStore(tmp_path / "root")
    store.put("s3://b/t/state/algo-1/a", b"one")
    store.put("s3://b/t/state/c", b"three")
    store.put("s3://b/t/state-2/of a neighbour", b"x")
    home = tmp_path / "home"
    assert fetch_folder(store, "s3://b/t/state/", home, Silent(), print) == 2
    assert (home / "algo-1/a").read_text() == "one"
    store.put("s3://b/t/state/c", b"changed")
    (home / "mine").write_text("stays")
    fetched = []
    real = store.download
    monkeypatch.setattr(store, "download", lambda uri, *more: (fetched.append(uri), real(uri, *more)))
    assert fetch_folder(store, "s3://b/t/state/", home, Silent(), print) == 2
    assert fetched == ["s3://b/t/state/c"]
    assert (home / "c").read_text() == "changed"
    assert sorted(each.name for each in home.iterdir()) == ["algo-1", "c", "mine"]


@pytest.mark.parametrize("key", ["../x", "a/../../x", "/etc/x", "a//b", "./a", "a\0b", "c"])
def test_a_key_that_is_no_path_is_left_out_and_the_others_come_home(tmp_path, key):
    """`c` is the folder of another object: S3 has no folders, so both may be there."""
    listed = [StoredObject(f"s3://b/p/{each}", 1, "", datetime.now(UTC)) for each in (key, "c/d")]
    store = SimpleNamespace(list=lambda prefix: listed, download=lambda uri, path, moved: path.write_text("x"))
    said = []
    assert fetch_folder(store, "s3://b/p/", tmp_path / "home", Silent(), said.append) == 1
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["d"]
    assert said == [
        f"s3://b/p/{key}: this key cannot be a file's path here: left out; `aws s3 cp` fetches it under another name"
    ]


def test_each_stream_becomes_a_file(tmp_path):
    lines = [
        LogLine("algo-1", "algo-1-100", 1, "a\n"),
        LogLine("algo-2", "algo-2-100", 2, "b"),
        LogLine("algo-1", "algo-1-200", 3, "c"),
    ]
    assert write_logs([lines, [LogLine("algo-1", "algo-1-100", 4, "d")]], tmp_path / "logs") == 3
    found = {each.name: each.read_text() for each in (tmp_path / "logs").iterdir()}
    assert found == {
        "algo-1-100.log": "a\nd\n",
        "algo-1-100.times": "1\n4\n",
        "algo-2-100.log": "b\n",
        "algo-2-100.times": "2\n",
        "algo-1-200.log": "c\n",
        "algo-1-200.times": "3\n",
    }


def test_each_line_of_a_text_with_several_has_its_time(tmp_path):
    write_logs(
        [[LogLine("algo-1", "algo-1-100", 7, "a\nb\n\n"), LogLine("algo-1", "algo-1-100", 8, "")]], tmp_path / "logs"
    )
    assert (tmp_path / "logs" / "algo-1-100.log").read_text() == "a\nb\n\n"
    assert (tmp_path / "logs" / "algo-1-100.times").read_text() == "7\n7\n8\n"
