"""Tar files of small images, for tests."""

import contextlib
import io
import tarfile
from pathlib import Path

import torch

from algorun_train.data import image_data
from algorun_train.options import folders, option_parser
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.world import World
from tests.train.training_runs import epochs

CLASSES = ["four", "one", "three"]
SKIP = "--skip-bad-samples"


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


def on_hosts(folder: Path, base: Path) -> list[Path]:
    """The same tar files on two hosts, as the channel `train`."""
    hosts = [base / name / "input" / "data" for name in ("host0", "host1")]
    for host in hosts:
        host.mkdir(parents=True)
    return [pack(folder, host / "train") for host in hosts]


def losses(base: Path) -> list[tuple[float, float]]:
    return [(row["train_loss"], row["val_loss"]) for row in epochs(base)]


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


def source(*args: str) -> image_data.ImageData:
    config = option_parser.read_options(
        DdpJobOptions, ["--image-size", "8", "--workers", "2", "--augment", "none", *args]
    )
    return image_data.load(
        config, folders.find_folders(config, {}, Path.is_dir), Communicator(World(), torch.device("cpu"))
    )
