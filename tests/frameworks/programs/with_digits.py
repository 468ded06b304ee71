"""A published script as it is, with scikit-learn's 1,797 digits in place of the data set that it would download.

`with_digits.py torchvision|keras SCRIPT [ARGUMENT ..]`: MNIST and CIFAR10 of torchvision, or mnist of Keras.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

ROOT = Path(__file__).resolve().parents[3]
TRAIN = 1500
TEST = 296


def digits(times: int, edge: int, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images of 8 x 8 pixels, each pixel drawn `times` wide, with an edge around: uint8 [n, side, side], and labels."""
    data = load_digits()
    chosen = slice(0, TRAIN) if train else slice(TRAIN, TRAIN + TEST)
    images = (data.images[chosen] * 15).astype(np.uint8).repeat(times, 1).repeat(times, 2)
    return np.pad(images, ((0, 0), (edge, edge), (edge, edge))), data.target[chosen].astype(np.uint8)


def give_torchvision() -> None:
    from PIL import Image

    sys.path.append(str(ROOT))
    from tests.train.parallel.model_zoo import library

    torchvision = library("torchvision")

    class Digits:
        def __init__(self, root, train=True, transform=None, download=False):
            self.transform = transform
            self.images, self.labels = digits(*self.size, train=train)

        def __len__(self):
            return len(self.images)

        def __getitem__(self, index):
            return self.transform(Image.fromarray(self.images[index]).convert(self.mode)), int(self.labels[index])

    torchvision.datasets.MNIST = type("MNIST", (Digits,), {"size": (3, 2), "mode": "L"})
    torchvision.datasets.CIFAR10 = type("CIFAR10", (Digits,), {"size": (4, 0), "mode": "RGB"})


def give_keras() -> None:
    import tensorflow as tf

    tf.keras.datasets.mnist.load_data = lambda: (digits(3, 2, train=True), digits(3, 2, train=False))


if __name__ == "__main__":
    {"torchvision": give_torchvision, "keras": give_keras}[sys.argv[1]]()
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
