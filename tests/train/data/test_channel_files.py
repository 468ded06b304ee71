"""The files of a channel: each once, links included; what is left out is counted and named."""

import os
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorun_train.common.errors import UserError
from algorun_train.data import channel_files, corpus, token_files
from algorun_train.data.channel_files import FolderTree, find_files
from algorun_train.data.folder import find_images, list_images
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.world import World
from tests.conftest import examples
from tests.train.training_runs import SMALL, write_images

ALONE = Communicator(World(), torch.device("cpu"))
JUNK = [
    ".ipynb_checkpoints",
    ".Trash-1000",
    "__MACOSX",
    "lost+found",
    "@eaDir",
    "$RECYCLE.BIN",
    "System Volume Information",
]


def put(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return root


def link(root: Path, name: str, target: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    os.symlink(target, root / name)


@pytest.fixture
def root(tmp_path):
    return put(tmp_path / "train", "a/1.png", "a/s/2.png", "b/3.png")


def line(root: Path, **options) -> str | None:
    return find_images("train", root, **options).left_out.line("train")


WHOLE = ("a/1.png", "a/s/2.png", "b/3.png")
SAME = {
    "the channel": ("a/all", "..", "1 link to a folder above it (a/all)"),
    "above the channel": ("a/s/all", "../../..", "1 link to a folder above it (a/s/all)"),
    "itself": ("a/s/again", ".", "1 link to a folder above it (a/s/again)"),
    "the channel, beside the classes": ("again", ".", "1 link to a folder above it (again)"),
    "a folder of the class": ("a/t", "s", "1 link to what is read anyway (a/t)"),
    "a file of the class": ("a/0.png", "s/2.png", "1 link to what is read anyway (a/0.png)"),
    "a hidden name": ("a/.x", "s", "1 hidden"),
}


@pytest.mark.parametrize("case", SAME)
def test_a_link_to_what_is_listed_anyway_adds_nothing(root, case):
    name, target, said = SAME[case]
    link(root, name, target)
    assert list_images("train", root).files == WHOLE
    assert line(root) == f"channel 'train': 1 file left out: {said}"


@pytest.mark.parametrize(
    ("name", "target"),
    [("a/more", "../b"), ("aa", "a"), ("a/4.png", "../b/3.png"), ("b/x", "../a/s"), ("b/y/z.png", "../../a/s/2.png")],
)
def test_a_link_that_gives_an_image_two_classes_is_refused(root, name, target):
    link(root, name, target)
    with pytest.raises(UserError) as caught:
        find_images("train", root)
    for part in (f"channel 'train' at {root}: {name} and ", "two classes", "allowed:", "fix: remove the link"):
        assert part in str(caught.value)


def test_links_to_what_is_outside_are_followed(root):
    put(root.parent / "pool", "5.png", "deep/6.png")
    link(root, "c", "../pool")
    link(root.parent, "pool/back", "../train")
    assert list_images("train", root).files == (*WHOLE, "c/5.png", "c/deep/6.png")
    assert line(root) == "channel 'train': 1 file left out: 1 link to a folder above it (c/back)"


def test_stores_by_content_may_have_one_file_under_several_names(root):
    """git-annex, and Hugging Face's cache: equal contents are one file, in a folder that is not listed itself."""
    put(root, ".git/annex/k.png")
    for name in ("a/8.png", "a/9.png", "b/9.png"):
        link(root, name, "../.git/annex/k.png")
    assert list_images("train", root).files == ("a/1.png", "a/8.png", "a/9.png", "a/s/2.png", "b/3.png", "b/9.png")


@pytest.mark.parametrize(("name", "target"), [("a/4.png", "gone.png"), ("a/4.png", "4.png"), ("c", "/nowhere/c")])
def test_a_dangling_link_is_refused_or_left_out_with_its_target(root, name, target):
    link(root, name, target)
    with pytest.raises(UserError, match=f"{name} is a dangling link to {target}; allowed: .*--skip-bad-samples"):
        find_images("train", root)
    assert find_images("train", root, skip_bad=True).files == WHOLE
    assert line(root, skip_bad=True) == f"channel 'train': 1 file left out: 1 dangling link ({name})"


def test_a_dangling_link_that_is_no_data_by_its_name_is_counted(root):
    link(root, "a/notes.txt", "gone")
    assert line(root) == "channel 'train': 1 file left out: 1 dangling link (a/notes.txt)"


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("place", ["", "a/", "a/s/"])
def test_folders_that_systems_leave_behind_are_no_data(root, place, junk):
    put(root, f"{place}{junk}/x.png", f"{place}{junk}/y/z.png")
    assert list_images("train", root).files == WHOLE
    assert line(root) == f"channel 'train': 2 files left out: 2 in {junk}"


def test_an_empty_folder_of_the_file_system_is_not_worth_a_word(root):
    (root / "lost+found").mkdir()
    assert list_images("train", root).files == WHOLE
    assert line(root) is None


def test_suffixes_in_any_case_and_of_all_formats_are_listed(root):
    names = ["a/5.JPEG", "a/6.webp", "a/7.bmp", "a/8.tif", "a/9.TIFF", "b/4.gif"]
    assert set(list_images("train", put(root, *names)).files) == {*WHOLE, *names}


def test_all_that_is_left_out_is_in_one_line_of_the_log(alone, tmp_path):
    train = write_images(tmp_path / "train", ["a", "b"], 10)
    put(
        train,
        "a/1.xcf",
        "a/2.XCF",
        "a/1.json",
        "a/.DS_Store",
        "a/Thumbs.db",
        "lost+found/x",
        "readme.md",
        "top.png",
        "b/n",
    )
    os.mkfifo(train / "a" / "pipe.png")
    told = [text for text in alone(*SMALL, "--train", str(train)).splitlines() if "left out" in text]
    assert told == [
        "channel 'train': 10 files left out: 2 .xcf, 1 .json, 1 .md, 1 Thumbs.db, 1 beside the class folders, 1 hidden, "
        "1 in lost+found, 1 special file (a/pipe.png), 1 others"
    ]


def test_a_class_folder_without_images_is_refused_with_what_is_in_it(root):
    put(root, "c/1.heic", "c/2.heic", "c/.ipynb_checkpoints/1.png")
    with pytest.raises(
        UserError, match=r"class folder c holds no image, only 2 \.heic, 1 in \.ipynb_checkpoints; allowed"
    ):
        find_images("train", root)


def test_one_tar_file_under_two_names_is_read_once(tars):
    whole = list_images("train", tars).files
    link(tars, "latest.tar", "001.tar")
    put(tars, "lost+found/x", "notes.txt")
    listing = list_images("train", tars)
    assert listing.files == whole
    assert listing.left_out.named() == "1 .txt, 1 in lost+found, 1 link to what is read anyway (latest.tar)"


def test_text_is_listed_by_the_same_rules(tmp_path, capsys):
    root = put(tmp_path / "text", "a.txt", "b/c.jsonl", "b/d.md", "__MACOSX/a.txt", "b/desktop.ini")
    link(root, "again", ".")
    link(root, "b/up", "..")
    link(root, "b/e.txt", "../a.txt")
    left_out = channel_files.LeftOut()
    assert token_files.listed("train", root, left_out=left_out) == ["a.txt", "b/c.jsonl"]
    assert left_out.line("train") == (
        "channel 'train': 6 files left out: 2 links to folders above them (again), 1 .md, 1 desktop.ini, 1 in __MACOSX, "
        "1 link to what is read anyway (b/e.txt)"
    )
    assert corpus.from_channel("train", root, ALONE).text == b"a.txtb/c.jsonlb/d.md"
    assert "channel 'train': 5 files left out: 2 links to" in capsys.readouterr().out
    link(root, "f.txt", "gone")
    for read in (lambda: token_files.listed("train", root), lambda: corpus.from_channel("train", root, ALONE)):
        with pytest.raises(UserError, match=r"f\.txt is a dangling link to gone"):
            read()
    assert token_files.listed("train", root, skip_bad=True) == ["a.txt", "b/c.jsonl"]


PLACES = ["", "a/", "b/", "a/s/", "b/s/", ".h/"]


@st.composite
def links(draw):
    """Links between some folders: where each is, and the folder or file that it leads to."""
    ends = [
        "../pool",
        "../pool/s",
        *(place.rstrip("/") or "." for place in PLACES),
        "a/1.txt",
        "../pool/2.txt",
        ".h/3.txt",
    ]
    names = draw(st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from("xyz")), max_size=6, unique=True))
    return {place + name: draw(st.sampled_from(ends)) for place, name in names}


@given(links(), st.randoms())
@examples(200)
def test_each_file_is_listed_once_whatever_the_order_of_names(links, random):
    with tempfile.TemporaryDirectory() as base:
        root = put(
            Path(base, "root"), *(f"{place}{number}.txt" for number, place in enumerate(PLACES)), "a/1.txt", ".h/3.txt"
        )
        put(Path(base, "pool"), "2.txt", "s/4.txt")
        for name, end in links.items():
            is_file = end.endswith(".txt")
            link(root, name + ".txt" * is_file, os.path.relpath(os.path.normpath(root / end), (root / name).parent))

        class Shuffled(FolderTree):
            def scan(self, folder):
                scan = super().scan(folder)
                for names in (scan.files, scan.folders, scan.links):
                    random.shuffle(names)
                return scan

        found = find_files(FolderTree(root), [".txt"])
        assert found == find_files(Shuffled(root), [".txt"])
        for path in found.files:
            assert not any(part.startswith(".") for part in path.split("/"))
        real = [os.path.realpath(root / path) for path in found.files]
        own = [path for path in found.files if not (root / path).is_symlink()]
        assert len({os.path.realpath(root / path) for path in own}) == len(own)
        # All that a walk through the links reaches is there once; links to single files outside count by their names.
        reached = set()
        for folder, folders, files in os.walk(root, followlinks=True):
            folders[:] = [
                name for name in folders if not name.startswith(".") and folder.count("/") < str(root).count("/") + 6
            ]
            reached |= {os.path.realpath(os.path.join(folder, name)) for name in files}
        above = {each for each in reached if each not in real}
        assert set(real) <= reached
        assert not above
