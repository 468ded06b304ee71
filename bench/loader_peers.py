"""webdataset and Hugging Face's datasets as their documentation uses them, for bench/loaders.py: the same files, the same
decoding and resizing by Pillow, torch's DataLoader with the same workers."""

import functools
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset, IterableDataset


def pixels_of(image: Image.Image, side: int) -> torch.Tensor:
    """uint8 [side, side, 3], as ours."""
    square = ImageOps.fit(image.convert("RGB"), (side, side), method=Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(square))


def web_images(folder: Path, side: int, batches: int, batch: int) -> IterableDataset:
    """webdataset over tar files: each worker streams tar files in a random order through a buffer of 1,000 samples, and
    gives `batches` batches a pass."""
    import webdataset

    def sample(raw: dict[str, object]) -> tuple[torch.Tensor, int]:
        with Image.open(io.BytesIO(raw["jpg"])) as file:
            file.draft("RGB", (side, side))
            return pixels_of(file, side), int(raw["__key__"].split("/")[0])

    tars = sorted(map(str, folder.glob("*.tar")))
    return (
        webdataset.WebDataset(tars, resampled=True, shardshuffle=False)
        .shuffle(1000)
        .map(sample)
        .batched(batch)
        .with_epoch(batches)
    )


def hub_images(folder: Path, side: int, cache: Path) -> Dataset:
    """datasets' `imagefolder`: the first call writes a table of the files to `cache`."""
    import datasets

    datasets.disable_progress_bars()
    found = datasets.load_dataset("imagefolder", data_dir=str(folder), split="train", cache_dir=str(cache))
    return found.with_transform(functools.partial(_transformed, side=side))


def _transformed(rows: dict[str, list], side: int) -> dict[str, list]:
    return {"pixels": [pixels_of(image, side) for image in rows["image"]], "label": rows["label"]}


def hub_batch(samples: list[dict[str, object]]) -> tuple[torch.Tensor, list[object]]:
    return torch.stack([each["pixels"] for each in samples]), [each["label"] for each in samples]


def streamed(dataset: IterableDataset, workers: int) -> Callable[[list[int]], int]:
    """A turn over a stream of batches, whose order is its own."""
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=True, prefetch_factor=4)
    return lambda order: sum(len(pixels) for pixels, _ in loader)
