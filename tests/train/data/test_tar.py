"""Tar files as channels: they train as the folders they were made from."""

import gzip
import json
import shutil
import tarfile

import numpy as np
import pytest

from algorun_train.data import tar_index
from algorun_train.data.folder import list_images, same_classes
from algorun_train.data.image_decoding import decode
from tests.train.data.tar_files import add, losses, on_hosts, pack, pack_keys
from tests.train.training_runs import SMALL


@pytest.mark.slow(but=["256"])
@pytest.mark.parametrize("cache_mb", ["256", "0"])
def test_tar_files_train_exactly_as_the_folders_they_were_made_from(alone, folder, tars, tmp_path, cache_mb):
    args = [*SMALL, "--augment", "shift+flip", "--workers", "2", "--cache-mb", cache_mb]
    alone(*args, "--train", str(folder), base=tmp_path / "one")
    text = alone(*args, "--train", str(tars), base=tmp_path / "other")
    assert "33 training and 3 validation images" in text
    assert losses(tmp_path / "one") == losses(tmp_path / "other")


@pytest.mark.slow
def test_ranks_of_two_hosts_read_their_own_copy_of_the_tar_files(ranks, folder, tmp_path):
    on_hosts(folder, tmp_path)
    run = ranks(2, 1, *SMALL, "--cache-mb", "0", base=tmp_path)
    assert run.codes() == [0, 0], run.text(1)
    assert "33 training" in run.text(0)


def test_webdataset_keys_give_the_same_images_under_the_numbers_of_their_classes(folder, tmp_path):
    listed = list_images("train", folder)
    keyed = list_images("train", pack_keys(folder, tmp_path / "keys"))
    assert keyed.classes == ("0", "1", "2")
    assert keyed.labels == listed.labels
    for index in range(len(listed.files)):
        assert np.array_equal(decode(keyed, index, 8), decode(listed, index, 8))


def test_numbers_are_ordered_by_value_and_names_are_classes_too(folder, tmp_path):
    image = next(folder.rglob("*.png")).read_bytes()
    for texts, classes in ((["10", "9", "2"], ("2", "9", "10")), (["tench", "goldfish"], ("goldfish", "tench"))):
        root = tmp_path / texts[0]
        root.mkdir()
        with tarfile.open(root / "a.tar", "w") as archive:
            for text in texts:
                add(archive, f"x/{text}.v1.png", image)
                add(archive, f"x/{text}.cls", text.encode())
        assert list_images("train", root).classes == classes


NUMBERS = ["0", "1", "2", "10", "11"]


@pytest.fixture
def numbered(folder, tmp_path):
    """Class folders with numbers as names: one image each, the same in every class."""
    image = next(folder.rglob("*.png"))
    for name in NUMBERS:
        (tmp_path / "numbered" / name).mkdir(parents=True)
        shutil.copy(image, tmp_path / "numbered" / name / "x.png")
    return tmp_path / "numbered"


def test_class_folders_in_a_tar_file_have_the_order_that_they_have_outside(numbered, tmp_path):
    listed = list_images("train", numbered)
    packed = list_images("train", pack(numbered, tmp_path / "tars"))
    assert packed.classes == listed.classes == ("0", "1", "10", "11", "2")
    assert (packed.files, packed.labels) == (listed.files, listed.labels)


def test_validation_has_the_class_numbers_of_training_whatever_orders_its_own(numbered, tmp_path):
    """.cls files order numbers by their value, folders by their text: the labels of one were those of another class in the other."""
    (tmp_path / "keyed").mkdir()
    with tarfile.open(tmp_path / "keyed" / "a.tar", "w") as archive:
        for name in NUMBERS:
            add(archive, f"{name}.png", (numbered / name / "x.png").read_bytes())
            add(archive, f"{name}.cls", name.encode())
    keyed, folders = list_images("validation", tmp_path / "keyed"), list_images("train", numbered)
    assert keyed.classes != folders.classes
    for train, validation in ((folders, keyed), (keyed, folders)):
        same = same_classes(train, validation)
        assert same.classes == train.classes
        key = (lambda file: file.partition(".")[0]) if validation is keyed else (lambda file: file.partition("/")[0])
        assert [same.classes[label] for label in same.labels] == [key(file) for file in same.files]


def test_a_second_job_reads_only_the_headers_of_tar_files_that_changed(folder, tars, monkeypatch):
    first = list_images("train", tars)
    read = []
    headers = tar_index.read_headers
    monkeypatch.setattr(tar_index, "read_headers", lambda path: read.append(path.name) or headers(path))
    second = list_images("train", tars)
    assert (read, second.files, second.labels) == ([], first.files, first.labels)
    assert np.array_equal(second.tars.spans, first.tars.spans)
    with tarfile.open(tars / "001.tar", "a") as archive:
        archive.add(next((folder / "one").iterdir()), "one/another.png")
    assert len(list_images("train", tars).files) == len(first.files) + 1
    assert read == ["001.tar"]


def _changed(tars, change):
    """Changes the index that a job has left: `change` gets the row of the first tar file, and returns the one in its place."""
    list_images("train", tars)
    kept = json.loads(gzip.decompress((tars / tar_index.INDEX).read_bytes()))
    kept["tars"]["000.tar"] = change(kept["tars"]["000.tar"])
    (tars / tar_index.INDEX).write_bytes(gzip.compress(json.dumps(kept).encode()))


def _image(**values):
    """Another value in the row of the first image."""

    def change(row):
        image = dict(zip(("name", "offset", "size", "label"), row[2][0], strict=True)) | values
        return [*row[:2], [list(image.values()), *row[2][1:]], *row[3:]]

    return change


def _with(place, value):
    return lambda row: [*row[:place], value, *row[place + 1 :]]


WRONG = {
    "beyond the file": _image(offset=10**9 * 512),
    "far beyond any file": _image(offset=10**30 * 512),
    "negative offset": _image(offset=-512),
    "no header before it": _image(offset=0),
    "between two blocks": _image(offset=1000),
    "in another image": lambda row: _image(offset=row[2][1][1], size=row[2][1][2] - 1)(row),
    "larger than the file": _image(size=10**9),
    "negative size": _image(size=-1),
    "offset as a float": _image(offset=1024.0),
    "offset as a text": _image(offset="1024"),
    "size is true": _image(size=True),
    "size is nothing": _image(size=None),
    "name is a number": _image(name=1),
    "name is a list": _image(name=["a.png"]),
    "name leads out": _image(name="../one/a.png"),
    "name of no image": _image(name="one/a.txt"),
    "label without keys": _image(label="cat"),
    "label is a number": lambda row: _image(label=1)(_with(3, True)(row)),
    "label of two lines": lambda row: _image(label="a\nb")(_with(3, True)(row)),
    "image of three values": _with(2, [["one/a.png", 512, 10]]),
    "images are an object": _with(2, {}),
    "keyed is a number": _with(3, 1),
    "size of the tar file is a float": _with(0, 1e5),
    "class folders": _with(4, [1]),
    "links": _with(5, [["a", 1]]),
    "counts": _with(6, [["a", "b", -1]]),
    "counts are true": _with(6, [["a", "b", True]]),
    "examples": _with(7, {"a": 1}),
    "a short row": lambda row: row[:3],
    "no row": lambda row: 1,
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_an_index_that_does_not_fit_its_tar_file_is_made_anew(tars, capsys, change):
    whole = list_images("train", tars)
    _changed(tars, change)
    found = list_images("train", tars)
    assert (found.files, found.labels, found.left_out.counts) == (whole.files, whole.labels, whole.left_out.counts)
    assert np.array_equal(found.tars.spans, whole.tars.spans)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert tar_index.INDEX in lines[0]
    list_images("train", tars)  # the new one is whole
    assert capsys.readouterr().out == ""


DEEP = b"[" * 100_000 + b"]" * 100_000
DAMAGED = {
    "empty": b"",
    "no gzip": b"garbage",
    "cut": gzip.compress(b'{"version": 2, "tars": {}}')[:-9],
    "another byte in it": gzip.compress(b"x" * 500)[:20] + b"?" * 30,
    "no JSON": gzip.compress(b"garbage"),
    "no UTF-8": gzip.compress(b'{"version": "\xff"}'),
    "nested deep": gzip.compress(b'{"version": 2, "tars": ' + DEEP + b"}"),
    "version nested deep": gzip.compress(b'{"version": ' + DEEP + b"}"),
    "a list": gzip.compress(b"[2]"),
    "version is true": gzip.compress(b'{"version": true, "tars": {}}'),
    "no tar files": gzip.compress(b'{"version": 2}'),
    "more bytes than memory": gzip.compress(b'{"version": 2, "tars": "' + b"x" * 2**21 + b'"}'),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_an_index_that_is_damaged_is_made_anew(tars, capsys, content):
    whole = list_images("train", tars).files
    (tars / tar_index.INDEX).write_bytes(content)
    assert list_images("train", tars).files == whole
    assert capsys.readouterr().out.count(tar_index.INDEX) == 1


def test_the_index_of_another_version_is_made_anew_without_a_word(tars, capsys):
    whole = list_images("train", tars).files
    (tars / tar_index.INDEX).write_bytes(gzip.compress(b'{"version": 1, "tars": {"000.tar": 1}}'))
    assert list_images("train", tars).files == whole
    assert capsys.readouterr().out == ""


def test_images_that_are_links_to_one_another_are_known_to_the_index(folder, tmp_path, capsys):
    root = tmp_path / "linked"
    root.mkdir()
    image = next(folder.rglob("*.png")).read_bytes()
    with tarfile.open(root / "a.tar", "w") as archive:
        add(archive, "one/a.png", image)
        add(archive, "two/b.png", image)
        member = tarfile.TarInfo("one/hard.png")
        member.type, member.linkname = tarfile.LNKTYPE, "one/a.png"
        archive.addfile(member)
    first, second = list_images("train", root), list_images("train", root)
    assert first.files == ("one/a.png", "one/hard.png", "two/b.png")
    assert (first.files, capsys.readouterr().out) == (second.files, "")


def test_a_folder_that_cannot_be_written_stays_without_an_index(tars, monkeypatch):
    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tar_index.files, "write", refuse)  # the tests may run as root, whom no mode stops
    assert len(list_images("train", tars).files) == 36
    assert not (tars / tar_index.INDEX).exists()
