"""Archives in a channel: unpacked beside themselves, once, safely, and with a word every few seconds."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib

import pytest

from algorun.common import STAGE, codec
from algorun.common.errors import UserError
from algorun.job.channels import Channel
from algorun.job.usercode import Setup
from algorun.usercode import progress
from algorun.usercode.extract import DONE
from tests.launcher.common.test_archives import archive, member
from tests.launcher.usercode.channels import SUFFIX_MODES, plain_text, run, zipped


def test_every_archive_is_unpacked_beside_itself(train):
    expected = {}
    for number, (suffix, mode) in enumerate(SUFFIX_MODES.items()):
        folder = train / f"part{number}"
        folder.mkdir()
        archive(folder / f"a{suffix}", member(f"n{number}/x.jpg", f"{number}"), mode=mode)
        expected[f"part{number}/n{number}/x.jpg"] = str(number)
    zipped(train / "b.zip", "deep/", "deep/er/y.txt")
    (train / "kept.csv").write_text("1,2")
    (train / "no.rar").write_text("an archive of no kind that we know")
    said = run(train)
    assert plain_text(train) == {
        **expected,
        "deep/er/y.txt": "z",
        "kept.csv": "1,2",
        "no.rar": "an archive of no kind that we know",
    }
    assert said[0].startswith("unpacking 6 archives (")
    assert said[0].endswith(f" of channel train in {train}")
    assert said[-1].startswith("unpacked 7 files (6 B) of channel train in ")  # a folder of a zip file counts too


def test_nothing_is_unpacked_twice_until_the_archive_changes(train):
    source = archive(train / "a.tar", member("x.txt", "old"))
    run(train)
    (train / "x.txt").write_text("the user's change")
    assert run(train) == [f"channel train is unpacked already: {train}"]
    assert plain_text(train) == {"x.txt": "the user's change"}
    archive(source, member("x.txt", "new"))
    os.utime(source, ns=(1, 1))
    run(train)
    assert plain_text(train) == {"x.txt": "new"}


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[1]", b'{"files": 3, "inner": 3}', b'{"files": {"a.tar": "x"}, "inner": [3]}', b"\xff"]
)
def test_a_damaged_list_of_what_is_done_counts_as_none(text, train):
    archive(train / "a.tar", member("x.txt", "x"))
    (train / DONE).write_bytes(text)
    run(train)
    assert plain_text(train) == {"x.txt": "x"}
    assert run(train) == [f"channel train is unpacked already: {train}"]


def test_an_archive_within_an_archive_stays_one_also_at_the_next_start(train):
    inner = archive(train.parent / "inner.tar", member("x.txt", "x"))
    with tarfile.open(train / "outer.tar", "w") as out:
        out.add(inner, "more/inner.tar")
    run(train)
    assert run(train) == [f"channel train is unpacked already: {train}"]
    assert (train / "more" / "inner.tar").read_bytes() == inner.read_bytes()
    assert plain_text(train) == {}


def test_archives_share_folders_and_a_later_file_replaces_an_earlier_one(train):
    archive(train / "1.tar", member("n01/a.txt", "first"), member("n01/b.txt", "b"))
    archive(train / "2.tar", member("n01/a.txt", "second"), member("n01/c/d.txt", "d"))
    run(train)
    assert plain_text(train) == {"n01/a.txt": "second", "n01/b.txt": "b", "n01/c/d.txt": "d"}
    assert sorted(os.listdir(train)) == [DONE, "1.tar", "2.tar", "n01"]


def test_a_channel_without_archives_says_so(train):
    (train / "a.csv").write_text("")
    assert run(train) == [f"channel train has no archive to unpack: {train}"]
    assert sorted(os.listdir(train)) == ["a.csv"]


# -- names in zip files ------------------------------------------------------------------------------------------------


def unmarked(path, name, system=3, extra=b""):
    """A zip file with one member whose name is these bytes, without the mark for UTF-8."""
    placeholder = "x" * len(name)
    info = zipfile.ZipInfo(placeholder)
    info.create_system, info.extra = system, extra
    with zipfile.ZipFile(path, "w") as out:
        out.writestr(info, "z")
    path.write_bytes(path.read_bytes().replace(placeholder.encode(), name))


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("pferde/é.txt".encode(), "pferde/é.txt"),  # as macOS writes it
        ("馬/1.txt".encode(), "馬/1.txt"),
        ("Käse/1.txt".encode("cp437"), "Käse/1.txt"),
        ("Käse/1.txt".encode("cp1252"), "KΣse/1.txt"),
        ("馬/1.txt".encode("cp932"), "ön/1.txt"),
    ],
)
def test_a_name_that_is_not_marked_as_utf_8_is_read_and_a_doubtful_one_is_named(name, read, train):
    unmarked(train / "a.zip", name)
    said = run(train)
    assert plain_text(train) == {read: "z"}
    doubtful = [line for line in said if "are read as code page 437" in line]
    if name.decode("utf-8", "replace") == read:
        assert doubtful == []
    else:
        (line,) = doubtful
        assert line.startswith(
            f"channel train, archive a.zip: names that are not UTF-8 are read as code page 437: 1, such as {read!r}; fix"
        )


@pytest.mark.parametrize("is_renamed", [False, True])
def test_the_field_of_winzip_names_a_member_unless_somebody_has_renamed_it(is_renamed, train):
    """unzip, 7z, bsdtar, and Python's zipfile from 3.12 on read it so."""
    old, own = "Käse/1.txt".encode("cp1252"), "Käse/日本.txt".encode()
    written_for = b"other" if is_renamed else old
    field = struct.pack("<HHBI", 0x7075, 5 + len(own), 1, zlib.crc32(written_for)) + own
    unmarked(train / "a.zip", old, extra=field)
    read = "KΣse/1.txt" if is_renamed else "Käse/日本.txt"
    said = run(train)
    assert plain_text(train) == {read: "z"}
    assert any("are read as code page 437" in line for line in said) == is_renamed
    if sys.version_info >= (3, 12):
        assert zipfile.ZipFile(train / "a.zip").namelist() == [read]


def test_backslashes_of_windows_are_folders_and_those_of_other_systems_are_not(train):
    unmarked(train / "a.zip", rb"horses\deep\1.txt", system=0)
    unmarked(train / "b.zip", rb"humans\1.txt", system=3)
    run(train)
    assert plain_text(train) == {"horses/deep/1.txt": "z", r"humans\1.txt": "z"}


def test_backslashes_of_windows_lead_nowhere_else(train):
    unmarked(train / "a.zip", rb"..\evil.txt", system=0)
    with pytest.raises(UserError, match="member '../evil.txt' lies outside"):
        run(train)
    assert os.listdir(train.parent) == ["train"]


def test_a_folder_that_is_missing_is_refused(tmp_path):
    with pytest.raises(UserError, match="channel 'train': .* is not a folder"):
        run(tmp_path / "absent")


# -- hostile and damaged archives ------------------------------------------------------------------------------------


def test_a_line_every_few_seconds_says_how_far_it_is(train, monkeypatch):
    monkeypatch.setattr(progress, "EVERY_S", 0.02)
    archive(train / "a.tar", member("x.txt", "x" * 500), member("y.txt", "y"), mode="w:")
    original = tarfile.TarFile.extract

    def slow(self: tarfile.TarFile, *given: object, **named: object) -> None:
        original(self, *given, **named)
        time.sleep(0.1)

    monkeypatch.setattr(tarfile.TarFile, "extract", slow)
    said = run(train)
    assert len(said) >= 5
    assert any("files (501 B), now a.tar" in line and line.startswith("channel train: ") for line in said)


def test_what_a_killed_preparation_left_is_removed_and_unpacked_anew(train, tmp_path):
    """A stop kills the process: what was not finished is not there, and the next start unpacks it."""
    os.mkfifo(train / "slow")  # only so that the folder has something else
    with tarfile.open(train / "a.tar", "w") as out:
        for number in range(5_000):
            info = tarfile.TarInfo(f"n/{number}.txt")
            info.size = 1
            out.addfile(info, io.BytesIO(b"x"))
    setup = Setup("", "", "", extract=(Channel("train", str(train), "File"),))
    argv = [
        sys.executable,
        "-I",
        "-m",
        "algorun.usercode.prepare",
        json.dumps(codec.to_json(setup)),
        str(tmp_path / "result"),
    ]
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not any(name.startswith(STAGE) for name in os.listdir(train)):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert not (train / "n").exists()
    assert run(train)[-1].startswith("unpacked 5000 files (5.0 kB)")
    assert len(os.listdir(train / "n")) == 5_000
    assert sorted(os.listdir(train)) == [DONE, "a.tar", "n", "slow"]


def test_two_hosts_that_share_a_folder_unpack_it_once(train, tmp_path):
    for number in range(20):
        archive(train / f"{number}.tar", member(f"n/{number}.txt", "x"))
    setup = json.dumps(codec.to_json(Setup("", "", "", extract=(Channel("train", str(train), "File"),))))
    children = [
        subprocess.Popen(
            [sys.executable, "-I", "-m", "algorun.usercode.prepare", setup, str(tmp_path / f"result{host}")],
            stdout=subprocess.PIPE, text=True,
        )
        for host in range(3)
    ]  # fmt: skip
    outs = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0, 0]
    assert sum("unpacking 20 archives" in out for out in outs) == 1
    assert sum("is unpacked already" in out for out in outs) == 2
    assert len(plain_text(train)) == 20
