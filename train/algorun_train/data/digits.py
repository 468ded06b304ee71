"""The embedded images: 1,797 handwritten digits of 8 x 8 pixels (E. Alpaydin, C. Kaynak, UCI 1998). scikit-learn brings them,
so a first run needs no download."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from algorun_train.common.errors import UserError

from .sampler import Indices

CLASSES = tuple("0123456789")
SIDE = 8
HELD_OUT = 0.2


def load() -> tuple[NDArray[np.uint8], Indices]:
    """Images, uint8 [1797, 8, 8, 3], and labels, int64 [1797]. Raises UserError without scikit-learn.

    Reads the package's file directly: importing sklearn.datasets takes a second of CPU on every rank. The three colour
    channels are equal, so a model trained on digits also fits image folders, and the reverse.
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
