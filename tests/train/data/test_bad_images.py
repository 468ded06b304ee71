"""Corrupt images: an error that names them, or skipped and counted."""

import os
import shutil
import tarfile

import pytest
import torch

from algorun_train.common.errors import UserError
from algorun_train.data.batch import IGNORED
from algorun_train.data.sampler import Batching, Epochs
from tests.train.data.tar_files import SKIP, on_hosts, pack, source, spoil
from tests.train.training_runs import SMALL, once


@pytest.mark.parametrize("cache_mb", ["256", "0"])
def test_a_corrupt_image_ends_the_job_with_the_names_of_tar_file_and_member(alone, tars, cache_mb):
    named = spoil(tars, "one/2.JPG")
    with pytest.raises(UserError) as caught:
        alone(*SMALL, "--train", str(tars), "--cache-mb", cache_mb)
    for part in (f"channel 'train': {named} is a corrupt image", "fix:", "--skip-bad-samples"):
        assert part in str(caught.value)
    assert "0x" not in str(caught.value)  # an address would differ from rank to rank


@pytest.mark.parametrize("cache_mb", ["256", "0"])
@pytest.mark.parametrize("kind", ["tars", "folder"])
def test_a_skipped_image_is_counted_named_and_does_not_count(folder, tmp_path, capsys, kind, cache_mb):
    if kind == "tars":
        named = spoil(pack(folder, tmp_path / "data"), "one/2.JPG")
    else:
        shutil.copytree(folder, tmp_path / "data")
        victim = tmp_path / "data" / "one" / "2.JPG"
        victim.write_bytes(victim.read_bytes()[:300])
        named = str(victim)
    images = source("--train", str(tmp_path / "data"), "--validation", str(folder), "--cache-mb", cache_mb, SKIP)
    said = capsys.readouterr().out
    assert "skipped: 1 of 36 images of channel 'train' do not count" in said
    assert f"skipped: channel 'train': {named} is a corrupt image" in said
    assert "channel 'validation'" not in said
    steps = list(images.training(Epochs(0, 0, 1, 0), Batching(12, 1, 0, 1)))
    batches = [batch for _, (batch,) in steps]
    assert sorted(step.weight for step, _ in steps) == [11, 12, 12]
    ignored = [batch.inputs[i] for batch in batches for i in range(12) if batch.labels[i] == IGNORED]
    assert images.train_count == 36  # positions in an epoch stay the same
    assert sum(batch.valid for batch in batches) == 35
    assert len(ignored) == 1
    assert torch.equal(ignored[0], torch.full((3, 8, 8), -1.0))


def test_skipped_images_of_the_validation_split_count_neither_as_right_nor_as_wrong(folder, tars, tmp_path, alone):
    spoil(tars, "one/2.JPG")
    text = alone(*SMALL, "--train", str(folder), "--validation", str(tars), SKIP)
    assert "36 training and 35 validation images" in text


@pytest.mark.slow
def test_all_ranks_skip_what_one_of_them_found(ranks, folder, tmp_path):
    """In a pipeline only the first stage reads images, and only the last one labels."""
    for name, jobs in (("ddp", "algorun_train.jobs.ddp"), ("pipeline", "algorun_train.jobs.pipeline")):
        for host in on_hosts(folder, tmp_path / name):
            spoil(host, "one/2.JPG")
            spoil(host, "three/7.png")
        args = once([*SMALL, "--depth", "2", "--heads", "2", "--model", "vit", "--cache-mb", "0"])
        run = ranks(2, 1, *args, SKIP, base=tmp_path / name, program=jobs)
        assert run.codes() == [0, 0], run.text(0) + run.text(1)
        assert run.text(0).count("skipped: 2 of 3") == 1


def test_an_image_that_breaks_after_the_start_ends_the_job(tars):
    images = source("--train", str(tars), "--cache-mb", "0", SKIP)
    for path in tars.glob("*.tar"):
        os.truncate(path, 512)
    with pytest.raises(UserError, match=r"00.\.tar, member .* ends \d+ bytes before the end of the image"):
        list(images.training(Epochs(0, 0, 1, 0), Batching(12, 1, 0, 1)))


def test_a_channel_without_a_good_image_is_refused(folder, tmp_path):
    for path in pack(folder, tmp_path / "data").glob("*.tar"):
        with tarfile.open(path) as archive:
            names = archive.getnames()
        for name in names:
            spoil(tmp_path / "data", name.removeprefix("./"))
    with pytest.raises(UserError, match="--skip-bad-samples: no image of channel 'train' is left"):
        source("--train", str(tmp_path / "data"), SKIP)
