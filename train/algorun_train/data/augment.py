"""Random changes to images. They depend on (seed, epoch, sample) only: equal for any number of ranks, and nothing to save."""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from algorun_train.ranks.device_copies import to_device

from .sampler import Indices

REACH = 1 / 8  # largest shift, as a share of the side; one pixel for the 8 x 8 digits


def bits(seed: int, epoch: int, count: int) -> NDArray[np.uint64]:
    """64 random bits for each of `count` samples, uint64 [count]: a counter through splitmix64's finalizer (Steele, Lea, Flood
    2014)."""
    x = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x += np.uint64((seed * 0xD1342543DE82EF95 + (epoch + 1) * 0xBF58476D1CE4E5B9) % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Augment:
    """Shifts and flips square images, uint8 [B, S, S, 3], on their own device. A shift repeats the edge.

    There are few different shifts: each is a row of a table that is made once. The rows of all samples are drawn once per
    epoch. So a batch costs two look-ups and a gather, a third of the time of drawing for each batch. The host sends two
    numbers per sample; the device computes the B x S x S places of the pixels from them.
    """

    def __init__(self, kind: str, seed: int, samples: int, side: int) -> None:
        self._active, self._side = kind != "none", side
        reach = max(1, round(side * REACH)) if "shift" in kind else 0
        moves = np.arange(-reach, reach + 1)[:, None]
        self._rows = np.clip(np.arange(side) + moves, 0, side - 1)
        self._columns = self._rows
        if "flip" in kind:
            self._columns = np.concatenate([self._rows, self._rows[:, ::-1]])
        self._draw = lru_cache(maxsize=2)(lambda epoch: self._choices(seed, epoch, samples))
        self._tables = lru_cache(maxsize=2)(self._on_device)

    def _choices(self, seed: int, epoch: int, samples: int) -> NDArray[np.int64]:
        """[2, samples]: for each sample its row in the table of rows and in the table of columns."""
        random = bits(seed, epoch, samples)
        low, high = random & np.uint64(0xFFFFFFFF), random >> np.uint64(32)
        return np.stack([low % len(self._rows), high % len(self._columns)]).astype(np.int64)

    def _on_device(self, device: torch.device, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        rows, columns = (torch.from_numpy(table).to(device, kind) for table in (self._rows, self._columns))
        return rows, columns

    def __call__(self, images: torch.Tensor, epoch: int, indices: Indices) -> torch.Tensor:
        if not self._active:
            return images
        batch, side, device = len(images), self._side, images.device
        kind = torch.int32 if batch * side * side < 2**31 else torch.int64  # half the memory of 64 bits
        rows, columns = self._tables(device, kind)
        row, column = to_device(torch.from_numpy(self._draw(epoch)[:, indices]), device)
        first = torch.arange(0, batch * side, side, dtype=kind, device=device)
        lines = (rows[row] + first[:, None]) * side
        pixels = lines[:, :, None] + columns[column][:, None, :]
        return images.reshape(-1, 3).index_select(0, pixels.view(-1)).view(images.shape)
