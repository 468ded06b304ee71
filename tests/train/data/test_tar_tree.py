"""A tar file of class folders is listed as the folder that GNU tar extracts from it."""

import io
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun_train.common.errors import UserError
from algorun_train.data.folder import find_images
from algorun_train.data.listing import Listing
from tests.conftest import examples
from tests.train.data.tar_files import add

TOPS = ["a", "b", "__MACOSX"]
BELOW = ["s", ".h", "a"]
NAMES = ["1.png", "2.jpg", "x.json", "n"]
# What the members of a tar file may be that its extracted folder shows otherwise, or not at all.
OURS_ALONE = (
    "as a folder and as a",  # GNU tar writes through a link
    "as a link and as something else",  # GNU tar makes some links last
    "is a dangling link",  # to an absolute path, or to a name above the folder, which exists by chance
    "is missing: it has no .cls file and is in no class folder",  # beside class folders it is left out of a folder
)

folders = st.one_of(st.sampled_from(TOPS), st.tuples(st.sampled_from(TOPS), st.sampled_from(BELOW)).map("/".join))
paths = st.tuples(folders, st.sampled_from(NAMES)).map("/".join)
spelled = st.sampled_from(["", "./", "", "/", ".//"])
targets = st.one_of(
    st.sampled_from([".", "..", "../..", "1.png", "2.jpg", "../b", "../b/1.png", "s", "../a/s/../1.png", "x.json"]),
    st.sampled_from(["../.h", ".h", ".h/1.png", "../__MACOSX/1.png", "../__MACOSX", "n", "/nowhere", "gone.png"]),
)


@st.composite
def trees(draw):
    """Members: their kind, what is written before the name, the name, and the target of a link."""
    made = [("file", "", "a/0.png", None)]
    for _ in range(draw(st.integers(2, 10))):
        kind = draw(st.sampled_from(["file", "file", "file", "hard", "link", "link", "folder"]))
        name, target = draw(paths), None
        if kind == "hard":
            target = draw(st.sampled_from([name for kind, _, name, _ in made if kind != "folder"]))
        elif kind == "link":
            name = (
                name
                if draw(st.integers(0, 3))
                else f"{draw(st.sampled_from(TOPS))}/{draw(st.sampled_from(['t', 's']))}"
            )
            target = draw(targets)
        elif kind == "folder":
            name = draw(folders)
        elif not draw(st.integers(0, 15)):
            name = "0.png"  # in no class folder
        made.append((kind, draw(spelled), name, target))
    return made


def write(tar: Path, tree: list[tuple[str, str, str, str | None]]) -> None:
    kinds = {"hard": tarfile.LNKTYPE, "link": tarfile.SYMTYPE, "folder": tarfile.DIRTYPE}
    with tarfile.open(tar, "w") as archive:
        for number, (kind, before, name, target) in enumerate(tree):
            member = tarfile.TarInfo(before + name)
            data = b"%d" % number
            if kind == "file":
                member.size = len(data)
            else:
                member.type, member.linkname, data = kinds[kind], target or "", b""
                member.mode = 0o755
            archive.addfile(member, io.BytesIO(data))


def content(listing: Listing) -> list[tuple[str, str, bytes]]:
    found = []
    for index, (name, label) in enumerate(zip(listing.files, listing.labels, strict=True)):
        opened = listing.open(index)
        data = Path(opened).read_bytes() if isinstance(opened, str) else opened.read()
        found.append((name, listing.classes[label], data))
    return found


def listed(root: Path) -> list[tuple[str, str, bytes]] | str:
    try:
        return content(find_images("train", root))
    except UserError as error:
        return str(error)


@given(trees())
@examples(100)
def test_a_tar_file_of_class_folders_is_listed_as_its_extracted_folder(tree):
    with tempfile.TemporaryDirectory() as base:
        tars, folder = Path(base, "tars"), Path(base, "folder")
        tars.mkdir()
        folder.mkdir()
        write(tars / "0.tar", tree)
        extracted = subprocess.run(["tar", "xf", tars / "0.tar", "-C", folder], stderr=subprocess.PIPE, text=True)
        ours, theirs = listed(tars), listed(folder)
        assert "Traceback" not in str(ours)
        if isinstance(ours, str) and any(text in ours for text in OURS_ALONE):
            return
        if extracted.returncode:  # a name below a file, or a hard link to nothing
            return
        if isinstance(ours, str):
            assert isinstance(theirs, str), ours
        else:
            assert ours == theirs


def test_of_members_with_one_name_the_last_one_counts(tmp_path):
    """tar -r and tar -u append a new version."""
    write(tmp_path / "0.tar", [("file", "", name, None) for name in ("a/1.png", "b/1.png", "a/1.png")])
    listing = find_images("train", tmp_path)
    assert content(listing) == [("a/1.png", "a", b"2"), ("b/1.png", "b", b"1")]
    assert listing.left_out.named() == "1 member that a later one of its name replaces (a/1.png)"


def test_the_size_in_the_header_of_a_link_is_not_that_of_data(tmp_path):
    """Old programs write the size of the target there."""
    with tarfile.open(tmp_path / "0.tar", "w") as archive:
        for name in ("a/1.png", "b/1.png"):
            add(archive, name, name.encode())
        for name, size in (("a/2.png", 7), ("a/3.png", 10**6)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = tarfile.LNKTYPE, "a/1.png", size
            archive.addfile(member)
        add(archive, "b/2.png", b"b/2.png")
    found = content(find_images("train", tmp_path))
    assert [data for _, _, data in found] == [b"a/1.png", b"a/1.png", b"a/1.png", b"b/1.png", b"b/2.png"]


@pytest.mark.parametrize(
    ("name", "listed"), [("a//1.png", "a/1.png"), ("./a/1.png", "a/1.png"), ("/a/./1.png", "a/1.png")]
)
def test_names_are_those_of_the_extracted_files(tmp_path, name, listed):
    write(tmp_path / "0.tar", [("file", "", name, None), ("file", "", "b/1.png", None)])
    assert find_images("train", tmp_path).files == (listed, "b/1.png")


def test_what_systems_leave_in_tar_files_is_no_data(tmp_path):
    junk = [
        "a/._1.png",
        "__MACOSX/a/._1.png",
        "__MACOSX/2.png",
        "a/.ipynb_checkpoints/1.png",
        "@eaDir/1.png",
        "a/Thumbs.db",
    ]
    write(tmp_path / "0.tar", [("file", "./", name, None) for name in ("a/1.png", "b/1.png", *junk)])
    listing = find_images("train", tmp_path)
    assert listing.files == ("a/1.png", "b/1.png")
    assert listing.left_out.named() == "2 in __MACOSX, 1 Thumbs.db, 1 hidden, 1 in .ipynb_checkpoints, 1 in @eaDir"


def test_a_class_folder_without_images_is_refused_as_in_a_folder(tmp_path):
    members = [("file", "", name, None) for name in ("a/1.png", "b/1.png", "c/1.heic")]
    write(tmp_path / "0.tar", members)
    write(tmp_path / "1.tar", members[:2])
    with pytest.raises(UserError, match=r"0\.tar: class folder c holds no image, only 1 \.heic; allowed: .*; fix: "):
        find_images("train", tmp_path)
    write(tmp_path / "1.tar", [*members[:2], ("file", "", "c/2.png", None)])
    assert find_images("train", tmp_path).classes == ("a", "b", "c")
