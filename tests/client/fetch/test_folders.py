"""A folder of S3 comes home: only what is new, and never outside of the folder."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from algorun_client.aws.api import StoredObject
from algorun_client.common.progress import Silent
from algorun_client.fetch.folders import fetch_folder
from algorun_client.fetch.log_files import write_logs
from algorun_client.follow.log_reader import LogLine
from algorun_client.local.folder_store import FolderStore


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


@pytest.mark.parametrize(
    "key", ["../x", "a/../../x", "/etc/x", "a//b", "./a", "a\0b", "x" * 256, f"{'x' * 256}/a", "c"]
)
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


@pytest.mark.parametrize("gone", [1, 7])
def test_objects_that_are_removed_meanwhile_are_named_and_the_others_come_home(tmp_path, gone):
    store = FolderStore(tmp_path / "root")
    for key in ("a", "b"):
        store.put(f"s3://b/t/state/{key}", b"x")
    listed = list(store.list("s3://b/t/state/"))
    listed[1:1] = [StoredObject(f"s3://b/t/state/step-{n}", 9, "", datetime.now(UTC)) for n in range(gone)]
    then = SimpleNamespace(list=lambda prefix: listed, download=store.download)
    said = []
    assert fetch_folder(then, "s3://b/t/state/", tmp_path / "home", Silent(), said.append) == 2
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["a", "b"]
    removed = "was removed while its folder was fetched: left out"
    assert said[:5] == [f"s3://b/t/state/step-{n}: {removed}" for n in range(min(gone, 5))]
    assert said[5:] == ["s3://b/t/state/: 2 more objects were removed meanwhile"] * (gone > 5)


def _brought(tmp_path, *keys, size=1):
    """Brings objects home. Returns their number, and the lines about those that are left out."""
    listed = [StoredObject(f"s3://b/p/{key}", size, "", datetime.now(UTC)) for key in keys]
    said = []

    def download(uri, path, moved):
        aside = path.with_name(f".{path.name}.part")
        aside.write_text("x")
        aside.replace(path)

    store = SimpleNamespace(list=lambda prefix: listed, download=download)
    return fetch_folder(store, "s3://b/p/", tmp_path / "home", Silent(), said.append), said


def test_a_key_whose_place_an_earlier_fetch_has_taken_is_left_out_and_nothing_is_lost(tmp_path):
    assert _brought(tmp_path, "c", "d/e/f") == (2, [])
    home = tmp_path / "home"
    count, said = _brought(tmp_path, "c/x", "c/y/z", "d/e", "new")
    assert count == 1
    assert said == [
        f"s3://b/p/c/x: {home}/c is a file: left out; remove it, or name another folder",
        f"s3://b/p/c/y/z: {home}/c is a file: left out; remove it, or name another folder",
        f"s3://b/p/d/e: {home}/d/e is a folder: left out; remove it, or name another folder",
    ]
    assert sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()) == ["c", "d/e/f", "new"]
    count, said = _brought(tmp_path, *(f"c/{number}" for number in range(8)))
    assert (count, len(said), said[-1]) == (0, 6, f"{home}: 3 more objects have no place there")


def test_nothing_is_written_through_a_link(tmp_path):
    home, outside = tmp_path / "home", tmp_path / "outside"
    (home / "a").mkdir(parents=True)
    outside.mkdir()
    (outside / "kept").write_text("kept")
    for name, target in (("away", outside), ("a/b", outside), ("gone", tmp_path / "absent"), ("inside", home / "a")):
        (home / name).symlink_to(target)
    (home / "file").symlink_to(outside / "kept")
    (home / "dangling").symlink_to(outside / "made")
    (home / "to a folder").symlink_to(outside)
    names = ("away/x", "away/y/z", "a/b/x", "gone/x", "inside/x", "file", "dangling", "to a folder", "a/good")
    count, said = _brought(tmp_path, *names)
    assert count == 4
    assert [line.split(": ")[1].removeprefix(f"{home}/") for line in said] == [
        "away is a link", "away is a link", "a/b is a link", "gone is a link", "inside is a link",
    ]  # fmt: skip
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("kept", "kept")]
    assert not (tmp_path / "absent").exists()
    for name in ("file", "dangling", "to a folder", "a/good"):
        assert (home / name).read_text() == "x"
        assert not (home / name).is_symlink()


def test_an_object_with_content_whose_key_ends_with_a_slash_is_not_lost_in_silence(tmp_path):
    count, said = _brought(tmp_path, "c/")
    assert (count, len(said)) == (0, 1)
    assert said[0].startswith("s3://b/p/c/: this key cannot be a file's path here")
    assert _brought(tmp_path, "c/", size=0) == (0, [])


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
