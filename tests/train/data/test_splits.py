"""Files of several splits in one channel are refused, where Hugging Face's datasets sees several splits in the same files."""

from __future__ import annotations

import re
import tarfile

import pytest
import torch

from algorun_train.common.errors import UserError
from algorun_train.data import corpus, folder, token_files
from algorun_train.data.splits import refuse_splits
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.world import World
from tests.train.data.tar_files import add

datasets = pytest.importorskip("datasets", reason="datasets is not installed")

SEVERAL = {
    "exported": ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test-00000-of-00001.parquet"],
    "named splits": ["data/train_sft-00000-of-00003-a3ecf92756993583.parquet", "data/test_sft-00000-of-00001-f7dfac4afe5b93f4.parquet"],
    "mlx": ["train.jsonl", "valid.jsonl", "test.jsonl"],
    "wikitext": ["wiki.train.raw", "wiki.valid.raw", "wiki.test.raw"],
    "folders": ["train/a.txt", "train/b.txt", "dev/c.txt"],
    "folders of languages": ["en/train/0.jsonl.gz", "en/validation/0.jsonl.gz"],
    "a readme beside them": ["README.txt", "squad-train-v1.1.jsonl", "squad-dev-v1.1.jsonl"],
    "webdataset": ["imagenet1k-train-0000.tar", "imagenet1k-validation-00.tar"],
}  # fmt: skip
ONE = {
    "no split": ["a.txt", "b/c.txt"],
    "one split": ["train-00000-of-00002.parquet", "train/more.parquet"],
    "a test set by itself": ["test/a.jsonl", "test/b.jsonl"],
    "documents by chance": ["test.txt", "train.txt", "locomotive.txt"],
    "part of a word": ["trains.txt", "latest.txt", "devices.txt"],
}


@pytest.mark.parametrize("names", SEVERAL.values(), ids=SEVERAL)
def test_files_of_several_splits_are_refused_and_datasets_sees_the_same(names, tmp_path):
    with pytest.raises(UserError, match="^channel 'train' holds the splits ") as error:
        refuse_splits("channel 'train'", names)
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    theirs = {str(split).partition("_")[0] for split in datasets.data_files.get_data_patterns(str(tmp_path))}
    assert set(re.findall(r"(\w+) \([^)]*\)", str(error.value).partition(", and a channel")[0])) == theirs


def test_capitals_are_no_difference():
    with pytest.raises(
        UserError, match=r"holds the splits train \(Train.txt\) and test \(TEST.txt\), and a channel is one"
    ):
        refuse_splits("channel 'train'", ["Train.txt", "TEST.txt"])


@pytest.mark.parametrize("names", ONE.values(), ids=ONE)
def test_files_of_one_split_or_of_none_are_read(names):
    refuse_splits("channel 'train'", names)


def test_every_reader_of_a_channel_looks(tmp_path):
    for name in ("train.txt", "test.txt"):
        (tmp_path / name).write_text("text")
    several = r"^channel 'train' at \S+ holds the splits test \(test.txt\) and train \(train.txt\), .* fix: move each split into a "
    with pytest.raises(UserError, match=several):
        token_files.listed("train", tmp_path)
    with pytest.raises(UserError, match=several):
        corpus.from_channel("train", tmp_path, Communicator(World(), torch.device("cpu")))


def test_tar_files_of_images_are_looked_at(tmp_path):
    for name in ("images-train-0.tar", "images-val-0.tar"):
        with tarfile.open(tmp_path / name, "w") as archive:
            for number, label in enumerate(("cat", "dog")):
                add(archive, f"{number}.jpg", b"image")
                add(archive, f"{number}.cls", label.encode())
    with pytest.raises(
        UserError, match=r"holds the splits train \(images-train-0.tar\) and validation \(images-val-0.tar\)"
    ):
        folder.list_images("train", tmp_path)
