"""Which label an image of a tar file has: what webdataset reads, or one error that names the member."""

import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext, group_by_keys, tar_file_expander

from algorun_train.common.errors import UserError
from algorun_train.data.folder import find_images, list_images
from tests.conftest import examples
from tests.train.data.tar_files import add

LABELS = ["cat", "dog", "0", "1"]
KEYS = ["0", "1", "a/0", "a.b/1"]
FIELDS = ["png", "PNG", "jpg", "cls", "json", "mask.png", "v2.jpg", "v2.cls"]


def write(path: Path, members: list[tuple[str, str]]) -> Path:
    """A tar file in a folder of its own, from names and contents. Returns the folder."""
    path.mkdir(exist_ok=True)
    with tarfile.open(path / "0.tar", "w") as archive:
        for name, content in members:
            add(archive, name, content.encode())
    return path


def pairs(root: Path) -> list[tuple[bytes, str]]:
    listing = find_images("train", root)
    return sorted((listing.open(i).read(), listing.classes[label]) for i, label in enumerate(listing.labels))


def pairs_or_error(root: Path) -> list[tuple[bytes, str]] | str:
    try:
        return pairs(root)
    except UserError as error:
        return str(error)


def webdataset_pairs(root: Path) -> list[tuple[bytes, str]] | None:
    """The image and the label of each sample that has both; None if webdataset raises."""
    try:
        with (root / "0.tar").open("rb") as file:
            found = list(group_by_keys(tar_file_expander([{"url": "0.tar", "stream": file}])))
    except ValueError:
        return None
    images = [(sample, sample.get("png", sample.get("jpg"))) for sample in found]
    return sorted((image, sample["cls"].decode()) for sample, image in images if image and "cls" in sample)


@st.composite
def members(draw):
    """Samples side by side, of which some lack a file, have one more, or have a key of another."""
    found = []
    for number in range(draw(st.integers(1, 6))):
        key = draw(st.sampled_from([*KEYS, f"k{number}", f"k{number}"]))
        fields = draw(st.sampled_from([["png", "cls"], ["cls", "jpg"], ["jpg", "json", "cls"], None]))
        for field in fields or draw(st.lists(st.sampled_from(FIELDS), min_size=1, max_size=4, unique=True)):
            label = field.lower().endswith("cls")
            found.append((f"{key}.{field}", draw(st.sampled_from(LABELS)) if label else f"{number}.{field}"))
    if not draw(st.integers(0, 3)):
        found.sort(key=lambda member: member[0].endswith("cls"))  # all labels behind all images
    return found


@given(members())
@example(
    [("0.json", "0.json"), ("0.jpg", "1.jpg"), ("0.json", "1.json"), ("0.cls", "cat")]
)  # webdataset ends at the second .json
@examples(500)
def test_images_have_the_labels_that_webdataset_gives_them(members):
    with tempfile.TemporaryDirectory() as base:
        written = [*members, ("last.png", "last"), ("last.cls", "cat")]
        root = write(Path(base, "tars"), written)
        theirs = webdataset_pairs(root)
        ours = pairs_or_error(root)
        if isinstance(ours, str):
            assert "0.tar" in ours
            assert any(name in ours for name, _ in members)
            return
        assert set(theirs or []) <= set(ours)  # webdataset also raises for a .json that comes twice
        assert len(ours) == len({image for image, _ in ours})
        names = {content: name for name, content in written}
        for image, label in set(ours) - set(theirs or []):  # files of a sample that are apart, or have more dots
            key = base_plus_ext(names[image.decode()])[0]
            assert (key, label) in {(base_plus_ext(name)[0], content) for name, content in written}


def test_shards_that_were_joined_keep_the_labels_beside_their_images(tmp_path):
    """tar --concatenate of shards that number from 0."""
    first = [(f"{i}.{field}", f"cat{i}" if field == "png" else "cat") for i in range(3) for field in ("png", "cls")]
    second = [(f"{i}.{field}", f"dog{i}" if field == "png" else "dog") for i in range(3) for field in ("png", "cls")]
    root = write(tmp_path / "tars", first + second)
    assert pairs(root) == [(b"cat%d" % i, "cat") for i in range(3)] + [(b"dog%d" % i, "dog") for i in range(3)]
    assert pairs(root) == webdataset_pairs(root)
    assert list_images("train", root).files == ("0.png", "1.png", "2.png") * 2


def test_labels_behind_all_images_go_by_their_keys(tmp_path):
    images = [(f"{i}.png", f"{i}") for i in range(4)]
    masks = [(f"{i}.mask.png", f"mask {i}") for i in range(4)]
    labels = [(f"{i}.cls", LABELS[i % 2]) for i in range(4)]
    listing = list_images("train", write(tmp_path / "tars", images + masks + labels))
    assert [listing.classes[label] for label in listing.labels] == ["cat", "cat", "dog", "dog"]
    assert listing.files == ("0.png", "2.png", "1.png", "3.png")
    assert listing.left_out.line("train") == "channel 'train': 4 files left out: 4 .mask.png"


def test_what_belongs_to_no_image_is_counted(tmp_path):
    members = [("0.png", "x"), ("0.cls", "cat"), ("1.png", "y"), ("1.cls", "dog"), ("2.heic", "z"), ("2.cls", "dog")]
    members += [("0.json", "{}"), ("__MACOSX/._0.png", "x"), ("@eaDir/0.png/SYNO.jpg", "x"), (".nfs1", "x")]
    line = list_images("train", write(tmp_path / "tars", members)).left_out.line("train")
    assert line == (
        "channel 'train': 6 files left out: 1 .cls without an image, 1 .heic, 1 .json, 1 hidden, 1 in @eaDir, 1 in __MACOSX"
    )


def test_a_class_may_begin_with_a_byte_order_mark(tmp_path):
    members = [
        ("0.png", "x"),
        ("0.cls", "\ufeffcat\r\n"),
        ("1.png", "y"),
        ("1.cls", "cat"),
        ("2.png", "z"),
        ("2.cls", "dog"),
    ]
    assert list_images("train", write(tmp_path / "tars", members)).labels == (0, 0, 1)


def links(path: Path) -> Path:
    """What tar writes of a folder whose equal files were made hard links, as rdfind and rsync --link-dest do."""
    root = write(path, [])
    with tarfile.open(root / "0.tar", "w") as archive:
        for name, data in (("0.png", b"x"), ("0.cls", b"cat"), ("1.png", b"y"), ("1.cls", b"dog")):
            add(archive, name, data)
        for name, kind, target in (
            ("2.png", tarfile.LNKTYPE, "0.png"),
            ("2.cls", tarfile.LNKTYPE, "1.cls"),
            ("3.png", tarfile.SYMTYPE, "./1.png"),
            ("3.cls", tarfile.SYMTYPE, "0.cls"),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
    return root


def test_hard_and_symbolic_links_have_the_bytes_of_their_targets(tmp_path):
    assert pairs(links(tmp_path / "tars")) == [(b"x", "cat"), (b"x", "dog"), (b"y", "cat"), (b"y", "dog")]


def test_dots_in_folders_are_no_part_of_a_key(tmp_path):
    members = [("p/22.0/1.1.png", "x"), ("p/22.0/1.1.cls", "cat"), ("p/22.0/2.1.png", "y"), ("p/22.0/2.1.cls", "dog")]
    assert pairs(write(tmp_path / "tars", members)) == [(b"x", "cat"), (b"y", "dog")]


def test_the_image_of_a_sample_is_the_one_with_its_key_alone(tmp_path):
    members = [
        ("k.mask.png", "m"),
        ("k.png", "x"),
        ("k.cls", "cat"),
        ("l.cls", "dog"),
        ("l.png", "y"),
        ("l.mask.png", "m"),
    ]
    root = write(tmp_path / "tars", members)
    assert pairs(root) == [(b"x", "cat"), (b"y", "dog")] == webdataset_pairs(root)
    assert find_images("train", root).left_out.named() == "2 .mask.png"


WRONG = {
    "left and right": (
        [("k.left.png", "x"), ("k.right.png", "y"), ("k.cls", "1")],
        "holds k.left.png and k.right.png in one sample, k: a key ends at the first dot",
    ),
    "two images": ([("k.png", "x"), ("k.jpg", "y"), ("k.cls", "1")], "holds k.png and k.jpg in one sample, k"),
    "dots in keys": (
        [("n01.1.jpg", "x"), ("n01.1.cls", "1"), ("n01.2.jpg", "y"), ("n01.2.cls", "2")],
        "holds n01.1.jpg and n01.2.jpg in one sample, n01: a key ends at the first dot of the file name",
    ),
    "label of another": ([("k.png", "x"), ("k.v2.cls", "1")], "holds k.v2.cls beside k.png, and no k.cls"),
    "twice": ([("k.png", "x"), ("k.cls", "1"), ("k.png", "y"), ("k.cls", "2")], "holds k.png twice in one sample"),
    "new label": (
        [("k.png", "x"), ("k.cls", "1"), ("l.png", "y"), ("l.cls", "2"), ("k.cls", "2")],
        "holds k.cls without an image beside it, while its key k comes 2 times",
    ),
    "joined by kind": (
        [("0.png", "x"), ("1.png", "y"), ("0.cls", "1"), ("1.cls", "2"), ("0.png", "z"), ("0.cls", "2")],
        "holds 0.png without a .cls file beside it, while its key 0 comes 3 times",
    ),
    "several lines": ([("k.png", "x"), ("k.cls", "cat\ndog")], "holds k.cls of 7 bytes, which names no class"),
    "above": ([("a/1.png", "x"), ("a/../b/2.png", "y")], "holds a/../b/2.png, a name with .."),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_label_that_could_be_anothers_is_an_error_with_the_member(tmp_path, wrong):
    members, text = WRONG[wrong]
    with pytest.raises(UserError) as caught:
        list_images("train", write(tmp_path / "tars", members))
    for part in (f"{tmp_path}/tars/0.tar", text, "allowed:", "fix:"):
        assert part in str(caught.value)


def lost_hard_link(archive: tarfile.TarFile) -> str:
    member = tarfile.TarInfo("a/2.png")
    member.type, member.linkname = tarfile.LNKTYPE, "pool/2.png"
    archive.addfile(member)
    return "0.tar: a/2.png is a dangling link to pool/2.png"


def link_outside(archive: tarfile.TarFile) -> str:
    member = tarfile.TarInfo("a/2.png")
    member.type, member.linkname = tarfile.SYMTYPE, "../../pool/2.png"
    archive.addfile(member)
    return "0.tar: a/2.png is a dangling link to ../../pool/2.png"


def test_an_absolute_link_is_no_path_inside_the_tar_file(tmp_path):
    """Beside labels, too: another file may lie at the same path in the tar file."""
    with tarfile.open(tmp_path / "0.tar", "w") as archive:
        add(archive, "pool/x.png", b"other")
        add(archive, "pool/x.cls", b"dog")
        member = tarfile.TarInfo("1.png")
        member.type, member.linkname = tarfile.SYMTYPE, "/pool/x.png"
        archive.addfile(member)
        add(archive, "1.cls", b"cat")
    with pytest.raises(UserError, match=r"1\.png is a dangling link to /pool/x\.png"):
        list_images("train", tmp_path)


@pytest.mark.parametrize("wrong", [lost_hard_link, link_outside])
def test_a_link_to_what_the_tar_file_does_not_hold_is_refused_or_left_out(tmp_path, wrong):
    with tarfile.open(tmp_path / "0.tar", "w") as archive:
        add(archive, "a/1.png", b"x")
        add(archive, "b/1.png", b"y")
        text = wrong(archive)
    with pytest.raises(UserError, match=text):
        list_images("train", tmp_path)
    listing = find_images("train", tmp_path, skip_bad=True)
    assert listing.files == ("a/1.png", "b/1.png")
    assert listing.left_out.line("train") == "channel 'train': 1 file left out: 1 dangling link (a/2.png)"
    assert find_images("train", tmp_path, skip_bad=True).left_out == listing.left_out  # from the kept index
