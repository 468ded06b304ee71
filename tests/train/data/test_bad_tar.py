"""One clear error for each thing that can be wrong with tar files."""

import gzip
import os
import tarfile

import pytest

from algorun_train.common.errors import UserError
from algorun_train.data.folder import list_images
from tests.train.data.tar_files import add, on_hosts
from tests.train.training_runs import SMALL


def begins(tars):
    (tars / "000.tar").write_bytes(b"no tar file" * 100)
    return "000.tar is no tar file"


def nothing(tars):
    (tars / "000.tar").write_bytes(b"")
    return "000.tar ends early: at offset 0 of 0 bytes"


def in_data(tars):
    path = tars / "000.tar"
    with tarfile.open(path) as archive:
        member = archive.getmembers()[5]
    os.truncate(path, member.offset_data + 10)
    return f"000.tar ends early: at offset {member.offset_data} of {member.offset_data + 10} bytes"


def in_header(tars):
    path = tars / "000.tar"
    with tarfile.open(path) as archive:
        member = archive.getmembers()[5]
    os.truncate(path, member.offset + 100)
    return (
        f"000.tar ends early: at offset {member.offset} of {member.offset + 100} bytes the mark of its end is missing"
    )


def between_members(tars):
    path = tars / "000.tar"
    with tarfile.open(path) as archive:
        member = archive.getmembers()[5]
    os.truncate(path, member.offset)
    return f"ends early: at offset {member.offset}"


def broken_header(tars):
    path = tars / "000.tar"
    with tarfile.open(path) as archive:
        member = archive.getmembers()[5]
    with path.open("r+b") as file:
        file.seek(member.offset)
        file.write(b"x" * 512)
    return f"no readable header at offset {member.offset}"


def joined(tars):
    (tars / "000.tar").write_bytes((tars / "000.tar").read_bytes().rstrip(b"\0") + bytes(2048) * 1)
    with tarfile.open(tars / "000.tar") as archive:
        archive.getmembers()
        end = archive.offset
    os.truncate(tars / "000.tar", end + 1024)
    with (tars / "000.tar").open("ab") as file:
        file.write((tars / "001.tar").read_bytes())
    return "goes on after its end mark"


def no_image(tars):
    with tarfile.open(tars / "002.tar", "w") as archive:
        add(archive, "one/notes.txt", b"no image")
    return "002.tar holds no image"


def no_labels(tars):
    with tarfile.open(tars / "002.tar", "w") as archive:
        add(archive, "7.png", b"image")
    return "002.tar: the label of 7.png is missing: it has no .cls file and is in no class folder"


def some_labels(tars):
    with tarfile.open(tars / "002.tar", "w") as archive:
        add(archive, "7.png", b"image")
        add(archive, "7.cls", b"1")
    return "is missing: it has no .cls file beside it"


def empty_label(tars):
    with tarfile.open(tars / "002.tar", "w") as archive:
        add(archive, "7.cls", b" \n")
        add(archive, "7.png", b"image")
    return "002.tar holds 7.cls of 2 bytes, which names no class"


def compressed(tars):
    (tars / "001.tar.gz").write_bytes(gzip.compress((tars / "001.tar").read_bytes()))
    return "holds 001.tar.gz, which is compressed"


def compressed_unsaid(tars):
    (tars / "001.tar").write_bytes(gzip.compress((tars / "001.tar").read_bytes()))
    return "001.tar is compressed (gzip)"


def with_folders(tars):
    (tars / "four").mkdir()
    return "holds tar files (000.tar, 001.tar) and folders (four)"


def one_class(tars):
    for path in tars.iterdir():
        path.unlink()
    with tarfile.open(tars / "0.tar", "w") as archive:
        add(archive, "images/one/1.png", b"image")
        add(archive, "images/two/1.png", b"image")
    return "holds one class, images"


WRONG = [begins, nothing, in_data, in_header, between_members, broken_header, joined, no_image, no_labels, some_labels]
WRONG += [empty_label, compressed, compressed_unsaid, with_folders, one_class]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_channel_whose_tar_files_cannot_be_used(tars, wrong):
    text = wrong(tars)
    with pytest.raises(UserError) as caught:
        list_images("train", tars)
    for part in (f"channel 'train' at {tars}", text, "fix:"):
        assert part in str(caught.value)


def test_another_tar_file_on_another_host_ends_all_ranks_with_one_error(ranks, folder, tmp_path):
    victim = on_hosts(folder, tmp_path)[1] / "001.tar"
    with victim.open("ab") as file:
        file.write(bytes(512))
    run = ranks(2, 1, *SMALL, base=tmp_path)
    assert run.codes() == [64, 64]
    errors = {line for rank in (0, 1) for line in run.text(rank).splitlines() if line.startswith("error:")}
    assert len(errors) == 1
    assert f"{victim} has {victim.stat().st_size} bytes on this host" in errors.pop()
