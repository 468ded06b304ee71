"""Images per second of ours from folders and from tar files beside torch's DataLoader, with the same number of workers;
and the seconds until they know their images.

    python bench/loaders.py [--images 100000] [--pixels 96] [--side 64] [--workers 2] [--rounds 7] [--sample 8000]

All contenders take turns in every round, in an order that changes; a turn passes over --sample images in a new order. The
peers are torch's DataLoader with a dataset that decodes as ours does, with torchvision's ImageFolder, with webdataset and with
Hugging Face's datasets (bench/loader_peers.py), where they are installed. webdataset reads tar files in their order, through a
buffer; the others read the images that they are asked for. Workers are processes that stay alive in all of them. CPU time is
shown beside because it hardly feels foreign load.
"""

import argparse
import contextlib
import importlib
import importlib.util
import os
import random
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import psutil
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from algorun_train.data.folder import list_images
from algorun_train.data.image_decoding import decode
from algorun_train.data.images import OnDisk
from algorun_train.data.listing import Listing
from bench import loader_peers
from bench.quiet import busy_s, paired_ratio

CLASSES = 10
SHARD = 10_000  # images per tar file, or less: each worker needs tar files of its own for webdataset
BATCH = 64
OURS, TARS = "algorun, folders", "algorun, tar files"
PEER, VISION = "DataLoader, our decoding", "DataLoader, ImageFolder"
WEB, HUB = "webdataset, tar files", "datasets, imagefolder"
Turn = Callable[[list[int]], int]


def make(folder: Path, images: int, pixels: int) -> None:
    """JPEG files in class folders, and the same files in tar files: smooth noise, which takes as long as photographs."""
    draw = np.random.default_rng(0)
    ready = []
    for _ in range(64):
        small = Image.fromarray(draw.integers(0, 256, (pixels // 4, pixels // 4, 3), dtype=np.uint8))
        ready.append(small.resize((pixels, pixels * 3 // 4), Image.Resampling.BICUBIC))
    for number in range(CLASSES):
        (folder / "folders" / str(number)).mkdir(parents=True)
    (folder / "tars").mkdir()
    shard = min(SHARD, -(-images // 8))
    for first in range(0, images, shard):
        with tarfile.open(folder / "tars" / f"{first // shard:04d}.tar", "w") as archive:
            for number in range(first, min(first + shard, images)):
                name = f"{number % CLASSES}/{number:07d}.jpg"
                ready[number % len(ready)].save(folder / "folders" / name, quality=90)
                archive.add(folder / "folders" / name, name)


class Decoded(Dataset):
    """Ours for torch's DataLoader: the same decoding of the same files."""

    def __init__(self, listing: Listing, side: int) -> None:
        self.listing, self.side = listing, side

    def __len__(self) -> int:
        return len(self.listing.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(decode(self.listing, index, self.side).copy()), self.listing.labels[index]


class Chosen:
    """A sampler whose order is set from outside, so that the DataLoader's workers stay alive from turn to turn."""

    def __init__(self) -> None:
        self.order: list[int] = []

    def __iter__(self):
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


def ours(listing: Listing, args: argparse.Namespace) -> Turn:
    images = OnDisk(listing, args.side, args.workers, torch.device("cpu"))

    def turn(order: list[int]) -> int:
        batches = [np.array(order[at : at + BATCH]) for at in range(0, len(order), BATCH)]
        return sum(len(pixels) for _, pixels in images.batches(batches, lambda batch: batch))

    return turn


def torchs(dataset: Dataset, args: argparse.Namespace, collate: Callable | None = None) -> Turn:
    chosen = Chosen()
    loader = DataLoader(
        dataset,
        BATCH,
        sampler=chosen,
        num_workers=args.workers,
        persistent_workers=True,
        prefetch_factor=4,
        collate_fn=collate,
    )

    def turn(order: list[int]) -> int:
        chosen.order = order
        return sum(len(inputs) for inputs, _ in loader)

    return turn


def image_folder(root: Path, side: int) -> Dataset | None:
    """torchvision's, as its examples use it. None if torchvision cannot be imported."""
    sys.path.append(str(Path(sys.prefix) / "vision"))
    if importlib.util.find_spec("torchvision") is None:
        return None
    with contextlib.suppress(Exception):  # a torchvision that does not fit this torch
        from tests.train.parallel.model_zoo import declare_torchvision

        declare_torchvision()
        from torchvision import datasets, transforms

        steps = [transforms.Resize(side), transforms.CenterCrop(side), transforms.PILToTensor()]
        return datasets.ImageFolder(str(root), transforms.Compose(steps))
    return None


def start_up(folder: Path, side: int) -> tuple[dict[str, float], dict[str, object]]:
    """Seconds until images are listed, by ours and by the peers that list them too, and what each has listed. "again": with
    what the first time has kept on the disk."""
    ways: dict[str, Callable[[], object]] = {
        OURS: lambda: list_images("train", folder / "folders"),
        TARS: lambda: list_images("train", folder / "tars"),
        f"{TARS}, again": lambda: list_images("train", folder / "tars"),
    }
    if installed("datasets"):
        ways |= dict.fromkeys(
            (HUB, f"{HUB}, again"), lambda: loader_peers.hub_images(folder / "folders", side, folder / "cache")
        )
    if image_folder(folder / "folders", side):
        ways[VISION] = lambda: image_folder(folder / "folders", side)
    seconds, listed = {}, {}
    for name, way in ways.items():
        begun = time.perf_counter()
        listed[name] = way()
        seconds[name] = time.perf_counter() - begun
    return seconds, listed


def installed(package: str) -> bool:
    if importlib.util.find_spec(package) is None:
        print(f"{package} is not installed", file=sys.stderr)
        return False
    importlib.import_module(package)  # not a part of the time that is measured
    return True


Seconds = dict[str, list[float]]


def measure(turns: dict[str, Turn], args: argparse.Namespace) -> tuple[Seconds, Seconds, list[float]]:
    """Seconds and CPU seconds of every contender in every round, and the cores that other processes used in each round."""
    seconds: Seconds = {name: [] for name in turns}
    cpu: Seconds = {name: [] for name in turns}
    foreign, shuffle = [], random.Random(0)
    for number in range(args.rounds + 1):
        order = shuffle.sample(range(args.images), args.sample)
        machine, own, clock = busy_s(), own_s(), time.perf_counter()
        for name in shuffle.sample(list(turns), len(turns)):
            begun, used = time.perf_counter(), own_s()
            count = turns[name](order)
            took, used = time.perf_counter() - begun, own_s() - used
            assert count == len(order)
            if number:  # round 0 starts the workers and fills the page cache
                seconds[name].append(took)
                cpu[name].append(used)
        if number:
            foreign.append((busy_s() - machine - own_s() + own) / (time.perf_counter() - clock))
    return seconds, cpu, foreign


def own_s() -> float:
    """CPU seconds of this process and of its children, also of those that live."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children()):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("images", 100_000), ("pixels", 96), ("side", 64), ("workers", 2), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--sample", type=int, default=8_000, help="images per turn")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    whole = BATCH * args.workers  # a turn is whole batches for each worker, since webdataset's workers do not share one
    args.sample = min(args.sample, args.images) // whole * whole
    if not args.sample:
        parser.error(f"--images and --sample: fewer than {whole}; allowed: at least {BATCH} for each worker")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make(folder, args.images, args.pixels)
        print(f"{args.images} JPEG files of {args.pixels} x {args.pixels * 3 // 4}, torch {torch.__version__}")
        begun, listed = start_up(folder, args.side)
        for name, took in begun.items():
            print(f"listed, {name}: {took:.2f} s", flush=True)
        turns = {name: ours(listed[name], args) for name in (OURS, TARS)}
        turns[PEER] = torchs(Decoded(listed[OURS], args.side), args)
        if VISION in listed:
            turns[VISION] = torchs(listed[VISION], args)
        if HUB in listed:
            turns[HUB] = torchs(listed[HUB], args, loader_peers.hub_batch)
        if installed("webdataset"):
            streams = loader_peers.web_images(folder / "tars", args.side, args.sample // whole, BATCH)
            turns[WEB] = loader_peers.streamed(streams, args.workers)
        seconds, cpu, foreign = measure(turns, args)
    print(f"{args.workers} workers, {len(foreign)} rounds, other processes used {statistics.median(foreign):.2f} cores")
    count = args.sample
    for name, took in seconds.items():
        low, ratio, high = paired_ratio(seconds[PEER], took)
        print(
            f"{name:26} {count / statistics.median(took):8.0f} images/s   {ratio:.3f} of {PEER} ({low:.3f} to {high:.3f})"
            f"   {1e6 * statistics.median(cpu[name]) / count:.0f} us of CPU per image"
        )


if __name__ == "__main__":
    main()
