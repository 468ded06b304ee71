"""The embedded data: 1,797 real handwritten digits of 8 x 8 pixels (E. Alpaydin, C. Kaynak, UCI 1998), shipped inside
scikit-learn, so that a first run needs no download."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from algorun_train.errors import UserError

from .sampler import Indices

CLASSES = tuple("0123456789")
SIDE = 8
HELD_OUT = 0.2


def load() -> tuple[NDArray[np.uint8], Indices]:
    """Images [1797, 8, 8, 3] of 0..255 and labels [1797]; UserError without scikit-learn.

    Read from the package's file: importing sklearn.datasets for it takes a second of CPU on every rank. Three equal
    channels, so that weights trained here fit image folders and the other way round.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise UserError(
            "no channel 'train' is given, and the embedded digits need scikit-learn, which is not installed; "
            "fix: give a channel train of class/*.png, or pip install scikit-learn"
        )
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        with gzip.open(file, "rt") as lines:
            table = np.loadtxt(lines, delimiter=",")
        grey, labels = table[:, :-1], table[:, -1]
    else:
        from sklearn.datasets import load_digits

        grey, labels = load_digits(return_X_y=True)
    levels = np.round(grey * (255 / 16)).astype(np.uint8).reshape(-1, SIDE, SIDE, 1)
    return np.repeat(levels, 3, axis=3), labels.astype(np.int64)
