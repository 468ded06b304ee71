"""Tar files as channels: they train as the folders they were made from, and one clear error for each thing that can be
wrong with them."""

import contextlib
import gzip
import io
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from algorun_train.common.errors import UserError
from algorun_train.data import image_data, tar_index
from algorun_train.data.batch import IGNORED
from algorun_train.data.folder import decode, list_images
from algorun_train.data.sampler import Batching
from algorun_train.options import folders, option_parser
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.world import World
from tests.train.training_runs import SMALL, epochs, once, write_images

SKIP = "--skip-bad-samples"
CLASSES = ["four", "one", "three"]


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def pack(folder: Path, target: Path, shards: int = 2) -> Path:
    """The images of `folder` as tar files in `target`, with their class folders."""
    target.mkdir()
    paths = sorted(folder.rglob("*.*"))
    for number in range(shards):
        with tarfile.open(target / f"{number:03d}.tar", "w") as archive:
            for path in paths[number::shards]:
                archive.add(path, "./" + str(path.relative_to(folder)))
    return target


def pack_keys(folder: Path, target: Path) -> Path:
    """The same with webdataset's naming: KEY.jpg beside KEY.cls, in one tar file."""
    target.mkdir()
    with tarfile.open(target / "all.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for number, path in enumerate(sorted(folder.rglob("*.*"))):
            add(archive, f"{number:06d}.cls", f"{CLASSES.index(path.parent.name):03d}\n".encode())
            add(archive, f"{number:06d}{path.suffix}", path.read_bytes())
            add(archive, f"{number:06d}.json", b"{}")
    return target


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images") / "folder", CLASSES, 12)


@pytest.fixture
def tars(folder, tmp_path):
    return pack(folder, tmp_path / "tars")


def on_hosts(folder: Path, base: Path) -> list[Path]:
    """The same tar files on two hosts, as the channel `train`."""
    hosts = [base / name / "input" / "data" for name in ("host0", "host1")]
    for host in hosts:
        host.mkdir(parents=True)
    return [pack(folder, host / "train") for host in hosts]


def losses(base: Path) -> list[tuple[float, float]]:
    return [(row["train_loss"], row["val_loss"]) for row in epochs(base)]


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


@pytest.mark.parametrize("content", [b"", b"garbage", gzip.compress(b'{"version": 1, "tars": {"000.tar": 1}}')])
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


def spoil(tars: Path, name: str) -> str:
    """Overwrites the second half of an image in place. Returns its name in messages."""
    for path in sorted(tars.glob("*.tar")):
        with tarfile.open(path) as archive, contextlib.suppress(KeyError):
            member = archive.getmember(f"./{name}")
            with path.open("r+b") as file:
                file.seek(member.offset_data + 30)
                file.write(bytes(member.size - 30))
            return f"{path}, member {name},"
    raise AssertionError(name)


@pytest.mark.parametrize("cache_mb", ["256", "0"])
def test_a_corrupt_image_ends_the_job_with_the_names_of_tar_file_and_member(alone, tars, cache_mb):
    named = spoil(tars, "one/2.JPG")
    with pytest.raises(UserError) as caught:
        alone(*SMALL, "--train", str(tars), "--cache-mb", cache_mb)
    for part in (f"channel 'train': {named} is a corrupt image", "fix:", "--skip-bad-samples"):
        assert part in str(caught.value)
    assert "0x" not in str(caught.value)  # an address would differ from rank to rank


def source(*args: str) -> image_data.ImageData:
    config = option_parser.read(DdpJobOptions, ["--image-size", "8", "--workers", "2", "--augment", "none", *args])
    return image_data.load(
        config, folders.find_folders(config, {}, Path.is_dir), Communicator(World(), torch.device("cpu"))
    )


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
    batches = [batch for _, (batch,) in images.training(0, 0, 1, 0, Batching(12, 1, 0, 1))]
    ignored = [batch.inputs[i] for batch in batches for i in range(12) if batch.labels[i] == IGNORED]
    assert images.train_count == 36  # positions in an epoch stay the same
    assert sum(batch.valid for batch in batches) == 35
    assert len(ignored) == 1
    assert torch.equal(ignored[0], torch.full((3, 8, 8), -1.0))


def test_skipped_images_of_the_validation_split_count_neither_as_right_nor_as_wrong(folder, tars, tmp_path, alone):
    spoil(tars, "one/2.JPG")
    text = alone(*SMALL, "--train", str(folder), "--validation", str(tars), SKIP)
    assert "36 training and 35 validation images" in text


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
        list(images.training(0, 0, 1, 0, Batching(12, 1, 0, 1)))


def test_a_channel_without_a_good_image_is_refused(folder, tmp_path):
    for path in pack(folder, tmp_path / "data").glob("*.tar"):
        with tarfile.open(path) as archive:
            names = archive.getnames()
        for name in names:
            spoil(tmp_path / "data", name.removeprefix("./"))
    with pytest.raises(UserError, match="--skip-bad-samples: no image of channel 'train' is left"):
        source("--train", str(tmp_path / "data"), SKIP)
