"""Scikit-learn's 1,797 handwritten digits, in place of data sets that published scripts would download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

TRAIN = 1500
TEST = 296


def digits(times: int, edge: int, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images of 8 x 8 pixels, each pixel drawn `times` wide, with an edge around: uint8 [n, side, side], and labels."""
    data = load_digits()
    chosen = slice(0, TRAIN) if train else slice(TRAIN, TRAIN + TEST)
    images = (data.images[chosen] * 15).astype(np.uint8).repeat(times, 1).repeat(times, 2)
    return np.pad(images, ((0, 0), (edge, edge), (edge, edge))), data.target[chosen].astype(np.uint8)


def write_photos(folder: Path, count: int) -> None:
    """Writes the first images as LABEL_NUMBER.jpg, 64 pixels wide."""
    from PIL import Image

    folder.mkdir()
    images, labels = digits(8, 0, train=True)
    for number in range(count):
        Image.fromarray(images[number]).save(folder / f"{labels[number]}_{number}.jpg")
