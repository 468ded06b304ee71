"""Archives from outside: what is honest arrives whole, what is not leaves nothing."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.archives import unpack
from algorun.common.errors import UserError
from tests.conftest import examples


def member(name: str, text: str = "", kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, link, len(text), mode
    info.uid = info.gid = 12345
    return info, text.encode()


def archive(path: Path, *members, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def code(tmp_path) -> Path:
    folder = tmp_path / "opt" / "code"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("mode", ["w:", "w:gz", "w:bz2", "w:xz"])
def test_an_honest_archive_arrives_whole(mode, tmp_path, code):
    source = archive(
        tmp_path / "s", member("./train.py", "x"), member("lib", kind=tarfile.DIRTYPE, mode=0), member("lib/ü b.py", "y"),
        member("go.sh", "z", mode=0o4755), member("lib/link.py", kind=tarfile.SYMTYPE, link="../train.py"),
        member("hard.py", kind=tarfile.LNKTYPE, link="train.py"), mode=mode,
    )  # fmt: skip
    unpack(source, code, "s", place="the code folder", fix="put data into a channel instead")
    assert sorted(str(path.relative_to(code)) for path in code.rglob("*")) == [
        "go.sh", "hard.py", "lib", "lib/link.py", "lib/ü b.py", "train.py",
    ]  # fmt: skip
    assert (code / "lib" / "link.py").read_text() == "x" == (code / "hard.py").read_text()
    assert oct((code / "go.sh").stat().st_mode & 0o7777) == "0o755"  # no set-user-ID bit from outside
    assert (code / "train.py").stat().st_uid == os.getuid()


HOSTILE = {
    "climbs out": [member("../evil", "x")],
    "climbs out further in": [member("a/../../evil", "x")],
    "absolute": [member("/tmp/evil-of-algorun", "x")],
    "link to a folder outside, file behind it": [
        member("a", kind=tarfile.SYMTYPE, link="/etc"), member("a/evil", "x"),
    ],
    "relative link outside": [member("a/b", kind=tarfile.SYMTYPE, link="../../evil")],
    "file behind a link inside": [member("a", kind=tarfile.SYMTYPE, link="."), member("a/evil", "x")],
    "the same name twice, first as a link": [
        member("a", kind=tarfile.SYMTYPE, link="b"), member("a", "x"),
    ],
    "hard link outside": [member("a", kind=tarfile.LNKTYPE, link="/etc/passwd")],
    "hard link to what is not there": [member("a", kind=tarfile.LNKTYPE, link="b")],
    "link that leads out by way of another link": [
        member("z", kind=tarfile.DIRTYPE), member("p/q/l", kind=tarfile.SYMTYPE, link="../../z"),
        member("out", kind=tarfile.SYMTYPE, link="p/q/l/../../evil"),
    ],
    "hard link to a file that has become a link": [
        member("f", "x"), member("f", kind=tarfile.SYMTYPE, link="g"), member("y", kind=tarfile.LNKTYPE, link="f"),
    ],
    "device": [member("a", kind=tarfile.CHRTYPE)],
    "fifo": [member("a", kind=tarfile.FIFOTYPE)],
}  # fmt: skip


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_archive_is_refused_whole(members, tmp_path, code):
    source = archive(tmp_path / "s.tar.gz", member("train.py", "x"), *members)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=r"^s: "):
        unpack(source, code, "s", place="the code folder", fix="put data into a channel instead")
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/tmp/evil-of-algorun").exists()


def test_no_name_climbs_out_through_a_link(tmp_path, code):
    """To the kernel `p/q/link/../..` is above the folder that the link leads to, not above p/q."""
    (tmp_path / "opt" / "victim").write_text("safe")
    climb = "p/q/r/link/../../.."
    source = archive(
        tmp_path / "s.tar.gz", member("z", kind=tarfile.DIRTYPE), member("p/victim", "x"), member("p/q/r/f", "x"),
        member("p/q/r/link", kind=tarfile.SYMTYPE, link="../../../z"), member(f"{climb}/evil", "x"),
        member("hard", kind=tarfile.LNKTYPE, link=f"{climb}/victim"), member("hard", "overwritten"),
    )  # fmt: skip
    unpack(source, code, "s", place="the code folder", fix="put data into a channel instead")
    assert sorted(path.name for path in (tmp_path / "opt").iterdir()) == ["code", "victim"]
    assert (tmp_path / "opt" / "victim").read_text() == "safe"
    assert (code / "p" / "evil").read_text() == "x"


def damaged(path: Path, how: str) -> Path:
    good = archive(path, *(member(f"f{index}.py", os.urandom(3000).hex()) for index in range(20))).read_bytes()
    path.write_bytes(
        {
            "cut": good[: len(good) // 2],
            "cut at the end": good[:-10],
            "flipped": good[:2000] + bytes([good[2000] ^ 0xFF]) + good[2001:],
            "empty": b"",
            "no archive": b"PK\x03\x04 hello",
            "gzip of no archive": gzip.compress(b"hello" * 300),
        }[how]
    )
    return path


@pytest.mark.parametrize("how", ["cut", "cut at the end", "flipped", "empty", "no archive", "gzip of no archive"])
def test_a_damaged_archive_leaves_nothing(how, tmp_path, code):
    with pytest.raises(UserError, match=r"^s: "):
        unpack(
            damaged(tmp_path / "s.tar.gz", how),
            code,
            "s",
            place="the code folder",
            fix="put data into a channel instead",
        )
    assert list(code.iterdir()) == []


def test_an_archive_larger_than_the_disk_is_refused_before_it_fills_it(tmp_path, code):
    info, _ = member("huge.bin")
    info.size = 1 << 60
    path = tmp_path / "s.tar"
    path.write_bytes(info.tobuf() + b"\0" * 1024)
    with pytest.raises(UserError, match=r"not a usable tar"):
        unpack(path, code, "s", place="the code folder", fix="put data into a channel instead")
    assert list(code.iterdir()) == []


@examples(200)
@given(flips=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=12), cut=st.floats(0.2, 1))
def test_any_damage_brings_a_clean_error_or_files_inside(flips, cut, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    code = folder / "code"
    code.mkdir()
    source = archive(folder / "s", member("a/b.py", "x" * 700), member("c", kind=tarfile.SYMTYPE, link="a"), mode="w:")
    data = bytearray(source.read_bytes())
    for place, value in flips:
        data[int(place * (len(data) - 1))] ^= value
    source.write_bytes(data[: max(1, int(cut * len(data)))])
    try:
        unpack(source, code, "s", place="the code folder", fix="put data into a channel instead")
    except UserError:
        assert list(code.iterdir()) == []
    assert sorted(path.name for path in folder.iterdir()) == ["code", "s"]


@pytest.mark.parametrize("harm", ["second header", "cut in the second header"])
def test_a_plain_archive_with_a_damaged_header_is_not_taken_for_a_shorter_one(harm, tmp_path, code):
    """tarfile takes a header that it cannot read for the archive's end, without a word."""
    source = archive(tmp_path / "s", member("a.py", "x"), member("b.py", "y"), mode="w:")
    data = bytearray(source.read_bytes())
    data[1024 + 3] ^= 1
    source.write_bytes(data if harm == "second header" else data[: 1024 + 300])
    with pytest.raises(UserError, match="not a usable tar file"):
        unpack(source, code, "s", place="the code folder", fix="put data into a channel instead")
    assert os.listdir(code) == []
