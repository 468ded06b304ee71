"""Tar files as channels: they train as the folders they were made from."""

import gzip
import tarfile

import numpy as np
import pytest

from algorun_train.data import tar_index
from algorun_train.data.folder import list_images
from algorun_train.data.image_decoding import decode
from tests.train.data.tar_files import add, losses, on_hosts, pack_keys
from tests.train.training_runs import SMALL


@pytest.mark.parametrize("cache_mb", ["256", "0"])
def test_tar_files_train_exactly_as_the_folders_they_were_made_from(alone, folder, tars, tmp_path, cache_mb):
    args = [*SMALL, "--augment", "shift+flip", "--workers", "2", "--cache-mb", cache_mb]
    alone(*args, "--train", str(folder), base=tmp_path / "one")
    text = alone(*args, "--train", str(tars), base=tmp_path / "other")
    assert "33 training and 3 validation images" in text
    assert losses(tmp_path / "one") == losses(tmp_path / "other")


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


@pytest.mark.parametrize(
    "content",
    [b"", b"garbage", gzip.compress(b'{"version": 1, "tars": {"000.tar": 1}}', mtime=0)],  # pytest names the case by it
)
def test_an_index_that_cannot_be_used_is_made_anew(tars, content):
    whole = list_images("train", tars).files
    (tars / tar_index.INDEX).write_bytes(content)
    assert list_images("train", tars).files == whole


def test_a_folder_that_cannot_be_written_stays_without_an_index(tars, monkeypatch):
    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tar_index.files, "write", refuse)  # the tests may run as root, whom no mode stops
    assert len(list_images("train", tars).files) == 36
    assert not (tars / tar_index.INDEX).exists()
