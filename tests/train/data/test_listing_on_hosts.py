"""Hosts with different images (ShardedByS3Key): all ranks train on all of them, in the order of one host that has all."""

import os
import re
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from algorun_train.common.errors import UserError
from algorun_train.data import image_data
from algorun_train.options.folders import Folders
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.world import World
from tests.train.thread_communicator import as_ranks
from tests.train.training_runs import SMALL

from . import tar_files
from .tar_files import pack

PER_HOST = 2


@dataclass(frozen=True)
class Options:
    """Those of ModelOptions that images need."""

    image_size: int = 16
    workers: int = 1
    cache_mb: int = 256
    skip_bad_samples: bool = False
    augment: str = "none"
    seed: int = 0


def load(root: Path, comm: Communicator, **options):
    folders = Folders(root, None, Path("c"), Path("m"), Path("o"))
    return image_data.load(Options(**options), folders, comm)


def seen(data):
    """All that training reads."""
    splits = data.train, data.validation
    return data.classes, [split.labels.tolist() for split in splits], [split.pixels.tolist() for split in splits]


def on_hosts(roots, **options):
    """What each rank of these hosts reads, or the error that it gets."""

    def rank(comm):
        comm.world = World(comm.rank, comm.size, comm.rank % PER_HOST, PER_HOST, True)
        try:
            return seen(load(roots[comm.rank // PER_HOST], comm, **options))
        except UserError as error:
            return str(error)

    return as_ranks(len(roots) * PER_HOST, rank)


def deal(folder, base, hosts=3):
    """The files below `folder` by turns over hosts, unevenly: the last one has none."""
    roots = [base / str(host) for host in range(hosts)]
    for root in roots:
        root.mkdir(parents=True)
    for number, path in enumerate(sorted(path for path in folder.rglob("*") if path.is_file())):
        target = roots[min(number % 4, 1)] / path.relative_to(folder)
        target.parent.mkdir(exist_ok=True)
        shutil.copy(path, target)
    return roots


@pytest.mark.parametrize("kind", ["folders", "tars"])
def test_hosts_with_different_files_read_what_one_host_with_all_reads(kind, folder, tmp_path, capsys):
    whole = folder if kind == "folders" else pack(folder, tmp_path / "whole")
    alone = seen(load(whole, Communicator(World(), torch.device("cpu"))))
    roots = deal(whole, tmp_path / "hosts")
    assert on_hosts(roots) == [alone] * 6
    said = capsys.readouterr().out
    assert "channel 'train': 3 hosts have different files, with " in said
    assert f"{sum(map(len, alone[1]))} together" in said
    assert on_hosts([whole, whole]) == [alone] * 4
    assert "different files" not in capsys.readouterr().out


# That hosts with different images read the same is shown in threads.
@pytest.mark.slow
def test_a_job_on_two_hosts_trains_on_the_tar_files_of_both(ranks, folder, tmp_path):
    lines = []
    for name in ("same", "spread"):
        first, second = tar_files.on_hosts(folder, tmp_path / name)
        if name == "spread":
            sorted(first.glob("*.tar"))[0].unlink()
            sorted(second.glob("*.tar"))[-1].unlink()
        run = ranks(2, 1, *SMALL, base=tmp_path / name)
        assert run.codes() == [0, 0], run.text(0) + run.text(1)
        assert ("hosts have different files" in run.text()) == (name == "spread")
        lines.append(re.findall(r"train_loss: \S+ val_loss : \S+ val_accuracy: \S+", run.text()))
    assert lines[0] == lines[1] != []


def test_a_host_may_have_one_class(folder, tmp_path):
    alone = seen(load(folder, Communicator(World(), torch.device("cpu"))))
    roots = [tmp_path / name for name in sorted(os.listdir(folder))]
    for root in roots:
        shutil.copytree(folder / root.name, root / root.name)
    assert on_hosts(roots) == [alone] * PER_HOST * len(roots)


def test_an_image_that_several_hosts_have_counts_once(folder, tmp_path):
    alone = seen(load(folder, Communicator(World(), torch.device("cpu"))))
    roots = [shutil.copytree(folder, tmp_path / str(host)) for host in (0, 1)]
    first, second = (sorted(root.rglob("*.*")) for root in roots)
    first[0].unlink()
    second[-1].unlink()
    assert on_hosts(roots) == [alone] * 4


def test_what_cannot_be_read_together_is_one_error_on_all_ranks(folder, tmp_path):
    roots = deal(folder, tmp_path / "hosts", hosts=2)
    (error,) = set(on_hosts(roots, cache_mb=0))
    assert "hosts have different files, and their 33 decoded images take 1 MiB" in error
    assert "fix: raise --cache-mb, or use S3DataDistributionType FullyReplicated" in error
    (error,) = set(on_hosts([folder, pack(folder, tmp_path / "tars")]))
    assert "some hosts hold tar files, others class folders" in error
    (error,) = set(on_hosts([pack(folder, tmp_path / "by-folder"), tar_files.pack_keys(folder, tmp_path / "by-key")]))
    assert "the tar files of some hosts have .cls files, those of others class folders" in error
    one = tmp_path / "one"
    shutil.copytree(folder / sorted(os.listdir(folder))[0], one / "cat")
    (error,) = set(on_hosts([one, one]))
    assert "holds one class, cat" in error


def test_a_tar_file_of_two_sizes_is_named(folder, tmp_path):
    roots = [pack(folder, tmp_path / str(host)) for host in (0, 1)]
    tar = sorted(roots[0].glob("*.tar"))[0]
    with (roots[1] / tar.name).open("ab") as file:
        file.write(bytes(512))
    sorted(roots[1].glob("*.tar"))[-1].unlink()
    (error,) = set(on_hosts(roots))
    assert f"{tar.name} has {tar.stat().st_size + 512} bytes on one host and {tar.stat().st_size} on another" in error


def test_what_is_left_out_on_hosts_with_different_files_is_counted_together(folder, tmp_path, capsys):
    roots = deal(folder, tmp_path / "hosts")
    for number, root in enumerate(roots):
        (root / "four").mkdir(exist_ok=True)
        (root / "four" / "extra.png").write_bytes(next(folder.rglob("*.png")).read_bytes())
        for kind in ("xcf", "json")[: number + 1]:
            (root / "four" / f"{number}.{kind}").touch()
    on_hosts(roots)
    said = capsys.readouterr().out
    assert said.count("left out") == 1
    assert "channel 'train': 5 files left out: 3 .xcf, 2 .json\n" in said


def test_images_of_joined_tar_files_with_one_name_stay_two_images(folder, tmp_path):
    """tar --concatenate of shards that number from 0, spread over hosts."""
    images = sorted(folder.rglob("*.*"))[:8]
    roots = [tmp_path / name for name in ("first", "second", "whole")]
    for number, root in enumerate(roots):
        root.mkdir()
        for tar in (0, 1) if number == 2 else (number,):
            with tarfile.open(root / f"{tar}.tar", "w") as archive:
                for at, path in enumerate(images[tar * 4 : tar * 4 + 4]):
                    tar_files.add(archive, f"{at % 2}.png", path.read_bytes())
                    tar_files.add(archive, f"{at % 2}.cls", b"cat" if at % 2 else b"dog")
    alone = seen(load(roots[2], Communicator(World(), torch.device("cpu"))))
    assert sum(map(len, alone[1])) == 8
    assert on_hosts(roots[:2]) == [alone] * 4
