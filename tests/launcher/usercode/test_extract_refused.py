"""Archives that are hostile, damaged or too large are refused by name, and leave nothing."""

from __future__ import annotations

import errno
import os
import tarfile
import zipfile

import pytest

from algorun.common import archive_members
from algorun.common.errors import UserError
from algorun.usercode import extract as extraction
from algorun.usercode.extract import DONE
from tests.launcher.common.test_archives import HOSTILE, archive, member
from tests.launcher.usercode.channels import SUFFIX_MODES, run, zipped


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_leaves_nothing(kind, train):
    archive(train / "a.tar.gz", member("good.txt", "x"), *HOSTILE[kind])
    with pytest.raises(UserError) as caught:
        run(train)
    assert caught.value.where == "channel 'train', archive 'a.tar.gz'"
    assert os.listdir(train) == ["a.tar.gz"]
    assert os.listdir(train.parent) == ["train"]


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil-of-algorun", "a/../../evil"])
def test_a_hostile_zip_leaves_nothing(name, train):
    zipped(train / "a.zip", "good.txt", name)
    with pytest.raises(UserError, match=f"channel 'train', archive 'a.zip': member '{name}' lies outside"):
        run(train)
    assert os.listdir(train) == ["a.zip"]


def test_a_link_or_device_in_a_zip_is_refused(train):
    info = zipfile.ZipInfo("link")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(train / "a.zip", "w") as out:
        out.writestr(info, "/etc")
    with pytest.raises(UserError, match="member 'link' is no file and no folder, but a link or the like"):
        run(train)


def test_no_archive_writes_through_the_link_of_another(train):
    archive(train / "1.tar", member("d/real.txt", "x"), member("link", kind=tarfile.SYMTYPE, link="d"))
    archive(train / "2.tar", member("a.txt", "x"), member("link/evil.txt", "x"), member("z.tar", "x"))
    with pytest.raises(UserError, match="archive '2.tar': 'link' is a folder in the archive"):
        run(train)
    assert os.listdir(train / "d") == ["real.txt"]
    assert sorted(os.listdir(train)) == [DONE, "1.tar", "2.tar", "d", "link"]


def test_no_archive_replaces_another(train):
    second = archive(train / "2.tar", member("x.txt", "x")).read_bytes()
    archive(train / "1.tar", member("2.tar", "not an archive"))
    with pytest.raises(UserError, match="archive '1.tar': member '2.tar' would replace an archive"):
        run(train)
    assert (train / "2.tar").read_bytes() == second


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".zip"])
@pytest.mark.parametrize("damage", ["cut", "turned", "text", "empty"])
def test_a_damaged_archive_is_named_and_leaves_nothing(suffix, damage, train):
    source = train / f"a{suffix}"
    text = "".join(str(number) for number in range(20_000))
    if suffix == ".zip":
        with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as out:
            out.writestr("x.txt", text)
    else:
        archive(source, member("x.txt", text), mode=SUFFIX_MODES.get(suffix, "w:bz2"))
    good = source.read_bytes()
    middle = 20 if suffix == ".tar" else len(good) // 2  # a plain tar file has checksums of its headers only
    turned = good[:middle] + bytes(255 - byte for byte in good[middle : middle + 20]) + good[middle + 20 :]
    source.write_bytes(
        {"cut": good[: len(good) // 2], "turned": turned, "text": b"no archive\n" * 100, "empty": b""}[damage]
    )
    with pytest.raises(
        UserError, match=f"archive 'a{suffix}': is not a usable (tar|zip) file: .*; fix: upload it once more"
    ):
        run(train)
    assert os.listdir(train) == [f"a{suffix}"]


def test_an_encrypted_zip_is_refused_by_name(train):
    data = bytearray(zipped(train / "a.zip", "x.txt", kind=zipfile.ZIP_STORED).read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    (train / "a.zip").write_bytes(data)
    with pytest.raises(UserError, match="member 'x.txt' is encrypted; fix: pack it without a password"):
        run(train)


@pytest.mark.parametrize("name", ["a.7z", "sub/a.rar", "a.tar.zst", "A.TAR.LZ4"])
def test_archives_that_stay_packed_are_refused_where_there_is_nothing_else(name, train):
    (train / name).parent.mkdir(exist_ok=True)
    (train / name).write_bytes(b"x")
    with pytest.raises(
        UserError, match=f"channel 'train': '{name}': archives of this format are not unpacked; allowed: .tar, "
    ):
        run(train)
    zipped(train / "b.zip", "x.txt")
    assert run(train)[-1].endswith(f"; 1 in other formats stay packed, such as {name}")
    assert (train / "x.txt").exists()


def _written(name, content):
    def write(folder):
        (folder / name).write_bytes(content(folder))

    return write


def _zip_bytes(folder):
    return zipped(folder.parent / "other.zip", "x.txt").read_bytes()


def _split(folder):
    (folder / "a.z01").write_bytes(b"x")
    (folder / "a.zip").write_bytes(_zip_bytes(folder)[9:])


def _file_and_folder(folder):
    zipped(folder / "a.zip", "a", "a/b")


UNUSABLE = {
    "a zip file named as a tar file": (_written("a.tar.gz", _zip_bytes), "its content is zip; fix: give it the suffix of its content"),
    "a page of a web server": (_written("a.zip", lambda _: b"<html>"), "its content is HTML or XML; fix: give it"),
    "7z named as zip": (_written("a.zip", lambda _: b"7z\xbc\xaf\x27\x1c"), "its content is 7z; fix: give it"),
    "a part of a zip file": (_split, "fix: its parts are to be joined first: zip -s 0 a.zip --out whole.zip"),
    "a name that is too long": (lambda folder: zipped(folder / "a.zip", "n" * 300), "a name is too long: 'nnnn.*'.., 300 bytes; allowed"),
    "a file that is a folder too": (_file_and_folder, "'a' is a file and a folder in the archive; fix: give one of them another name"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNUSABLE)
def test_what_a_new_upload_does_not_mend_says_what_does(case, train):
    make, says = UNUSABLE[case]
    make(train)
    with pytest.raises(UserError, match=says):
        run(train)


def test_a_tar_file_that_holds_a_file_as_a_folder_too(train):
    archive(train / "a.tar", member("a", "x"), member("a/b", "x"))
    with pytest.raises(UserError, match="is a file and a folder in the archive"):
        run(train)


# -- the disk --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".tar", ".zip"])
def test_a_member_that_does_not_fit_is_refused_before_it_is_written(suffix, train, monkeypatch):
    source = train / f"a{suffix}"
    text = "x" * (2 * archive_members.CHUNK)
    if suffix == ".zip":
        with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as out:
            out.writestr("big.bin", text)
    else:
        archive(source, member("big.bin", text), mode="w:")
    usage = extraction.shutil.disk_usage(train)
    monkeypatch.setattr(extraction.shutil, "disk_usage", lambda _: usage._replace(free=archive_members.CHUNK))
    with pytest.raises(
        UserError, match="member 'big.bin' has 2097152 bytes, but .* has 1048576 bytes free; fix: use a larger"
    ):
        run(train)
    assert os.listdir(train) == [source.name]


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "No space left on device: .* bytes free; fix: use a larger volume"),
        (errno.EROFS, "cannot be unpacked: Read-only"),
    ],
)
def test_a_full_or_read_only_disk_is_one_clear_error(number, says, train, monkeypatch):
    archive(train / "a.tar", member("x.txt", "x"))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tarfile.TarFile, "extract", refuse)
    with pytest.raises(UserError, match=says):
        run(train)
    assert os.listdir(train) == ["a.tar"]


# -- while it works --------------------------------------------------------------------------------------------------
