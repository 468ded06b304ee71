"""Random changes to images, decided by (seed, epoch, sample) alone: equal on every layout, with nothing to save."""

import numpy as np
import torch
from numpy.typing import NDArray

from .sampler import Indices

SHIFT = 1 / 8  # of the side, in either direction: one pixel of the 8 x 8 digits


def bits(seed: int, epoch: int, indices: Indices) -> NDArray[np.uint64]:
    """64 well-mixed bits per sample: splitmix64's finalizer (Steele, Lea, Flood 2014) over a counter."""
    x = indices.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x += np.uint64((seed * 0xD1342543DE82EF95 + (epoch + 1) * 0xBF58476D1CE4E5B9) % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Augment:
    """Shifts (edges repeated) and flips a batch of uint8 images [B, H, W, C] on whatever device they are."""

    def __init__(self, kind: str, seed: int) -> None:
        self._shift, self._flip, self._seed = "shift" in kind, "flip" in kind, seed

    def __call__(self, images: torch.Tensor, epoch: int, indices: Indices) -> torch.Tensor:
        if not (self._shift or self._flip):
            return images
        height, width = images.shape[1:3]
        random = bits(self._seed, epoch, indices)
        rows, columns = np.arange(height)[None], np.arange(width)[None]
        if self._shift:
            reach = np.array([max(1, round(height * SHIFT)), max(1, round(width * SHIFT))], dtype=np.uint64)
            parts = np.stack([random & np.uint64(0xFFFFFF), (random >> np.uint64(24)) & np.uint64(0xFFFFFF)])
            move = (parts % (2 * reach + 1)[:, None]).astype(np.int64) - reach[:, None].astype(np.int64)
            rows = np.clip(rows + move[0][:, None], 0, height - 1)
            columns = np.clip(columns + move[1][:, None], 0, width - 1)
        if self._flip:
            turned = (random >> np.uint64(63)).astype(bool)[:, None]
            columns = np.where(turned, width - 1 - columns, columns)
        device = images.device
        which = torch.arange(len(images), device=device)[:, None, None]
        return images[
            which, torch.from_numpy(rows).to(device)[:, :, None], torch.from_numpy(columns).to(device)[:, None]
        ]
