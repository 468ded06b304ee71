"""Gradients of a step, averaged over the replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from algorun_smdistributed.collectives.arrays import MEAN, reduced
from algorun_smdistributed.ranks.rank_group import RankGroup

Tensor = Any  # TensorFlow's objects have no types for mypy
Array = Any  # NumPy's, of any type
Numbers = tuple[int, ...]
"""the tensors of a gradient among those of a microbatch: one, or the values and rows of slices"""


def replica_means(
    results: Sequence[Sequence[Tensor]], gradients: Sequence[Numbers], replicas: RankGroup, step: str
) -> list[Array]:
    """The mean of each gradient over the microbatches and over the replicas. On all ranks that hold one stage.

    `results`: the tensors of each microbatch. Dense gradients keep their shapes, and cross in one message for each type. Slices
    give two arrays, the values and rows of all replicas. Raises UserError on all ranks if they are in different steps.
    """
    what = f"@smp.step {step}, for its gradients"
    replicas.together(what)
    count = len(results)
    found: dict[Numbers, list[Array]] = {}
    dense: dict[Numbers, Array] = {}
    for numbers in gradients:
        first, *rest = ([result[number].numpy() for result in results] for number in numbers)
        if rest:
            rows = replicas.gathered((np.concatenate(first) / count, np.concatenate(rest[0])), what)
            values = np.concatenate([values for values, _ in rows]) / replicas.size
            found[numbers] = [values.astype(first[0].dtype), np.concatenate([indices for _, indices in rows])]
        else:
            dense[numbers] = (sum(first[1:], first[0]) / count).astype(first[0].dtype)
    for numbers, mean in zip(dense, reduced(list(dense.values()), replicas, MEAN, what), strict=True):
        found[numbers] = [mean]
    return [array for numbers in gradients for array in found[numbers]]
