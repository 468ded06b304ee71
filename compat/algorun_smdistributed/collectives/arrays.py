"""Arrays of NumPy, reduced over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from algorun_smdistributed.ranks.rank_group import RankGroup

Array = Any  # NumPy's, of any type
NARROW = 2  # bytes of floating point types that neither MPI nor Gloo adds well
MEAN = "MEAN"


def reduced(arrays: Sequence[Array], ranks: RankGroup, kind: str, what: str) -> list[Array]:
    """Each array over all ranks, which have the same shapes: one message for each type. `kind` is MEAN, SUM, MIN or MAX.

    Types of 16 bits are reduced in float32. RuntimeError if a rank does not come in time.
    """
    found: list[Array] = [None] * len(arrays)
    by_type: dict[Any, list[int]] = {}
    for number, array in enumerate(arrays):
        by_type.setdefault(array.dtype, []).append(number)
    for dtype, numbers in by_type.items():
        wire = np.float32 if dtype.itemsize == NARROW and dtype.kind not in "iu" else dtype
        flat = np.concatenate([np.ravel(arrays[number]).astype(wire) for number in numbers])
        total = ranks.reduce(flat, what, "SUM" if kind == MEAN else kind)
        if kind == MEAN:
            total = total / ranks.size
        at = 0
        for number in numbers:
            shape, size = np.shape(arrays[number]), int(np.size(arrays[number]))
            found[number] = total[at : at + size].reshape(shape).astype(dtype)
            at += size
    return found
