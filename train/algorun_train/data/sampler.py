"""Which samples each replica takes at each step. Pure. The order depends on seed and epoch, not on the number of ranks.

The order of an epoch is one permutation. A step takes its next `global_batch` samples, and each replica a slice of them.
Therefore:
- the same samples form a step, whether 4 replicas take 32 each or one takes 128;
- an epoch can be resumed after any number of samples, with any number of replicas;
- every sample is taken exactly once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batching:
    """How a step takes samples: `batch` per replica and pass, in `accumulation` passes. This is replica number `replica`
    (from 0) of `replicas`."""

    batch: int
    accumulation: int
    replica: int
    replicas: int

    @property
    def global_batch(self) -> int:
        return self.batch * self.accumulation * self.replicas


@dataclass(frozen=True, slots=True)
class Piece:
    """What one replica computes in one pass: always `batch` indices; the first `valid` of them count."""

    indices: Indices
    valid: int


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """One optimizer step: samples [begin, end) of the epoch's order, over all replicas. `pieces` are this replica's, one for
    each pass. `weight` is the number of labels that count in the step, over all replicas and passes."""

    epoch: int
    begin: int
    end: int
    pieces: tuple[Piece, ...]
    weight: int

    @property
    def total(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Epochs:
    """What is left of a run: from `done` samples of epoch `first` to the end of epoch `end` - 1. `seed` is that of the
    orders."""

    first: int
    done: int
    end: int
    seed: int


def permutation(count: int, seed: int, epoch: int) -> Indices:
    """The order of `count` samples in `epoch`. RandomState gives the same numbers in all versions of numpy (NEP 19)."""
    return np.random.RandomState([seed, epoch]).permutation(count)


def steps_in(samples: int, global_batch: int) -> int:
    """The number of steps for `samples` samples; the last one may be short."""
    return -(-samples // global_batch)


def take(
    order: Indices, begin: int, batching: Batching, epoch: int = 0, labels: Indices | None = None
) -> OptimizerStep:
    """The step that starts after `begin` samples of `order`. `labels` are the counted labels of each sample; by default one.

    Short pieces at the end of an epoch are filled with repeated samples that do not count. So shapes never change, and a
    replica takes part in every collective even if no samples are left for it.
    """
    batch, end = batching.batch, min(begin + batching.global_batch, len(order))
    pieces = []
    for turn in range(batching.accumulation):
        at = begin + (turn * batching.replicas + batching.replica) * batch
        indices = order[at : min(at + batch, end)]
        valid = len(indices)
        if valid < batch:
            indices = np.concatenate([indices, np.resize(order, batch - valid)])
        pieces.append(Piece(indices, valid))
    weight = end - begin if labels is None else int(labels[order[begin:end]].sum())
    return OptimizerStep(epoch, begin, end, tuple(pieces), weight)


def walk(
    order: Indices, begin: int, batching: Batching, epoch: int = 0, labels: Indices | None = None
) -> Iterator[OptimizerStep]:
    """Yields the steps of an epoch, from the one that starts after `begin` samples. `labels` as in `take`."""
    for at in range(begin, len(order), batching.global_batch):
        yield take(order, at, batching, epoch, labels)


def walk_epochs(
    count: int, epochs: Epochs, batching: Batching, labels: Indices | None = None
) -> Iterator[OptimizerStep]:
    """Yields the steps of a run over `count` samples, epoch after epoch. `labels` as in `take`."""
    for epoch in range(epochs.first, epochs.end):
        begin = epochs.done if epoch == epochs.first else 0
        yield from walk(permutation(count, epochs.seed, epoch), begin, batching, epoch, labels)


def held_out(labels: Indices, share: float) -> tuple[Indices, Indices]:
    """Indices for training and for validation. The same `share` of each class is held out; the split is always the same."""
    random, hold = np.random.RandomState(0), []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        size = min(max(1, round(share * len(members))), len(members) - 1)
        hold.append(random.permutation(members)[:size])
    validation = np.sort(np.concatenate(hold))
    return np.setdiff1d(np.arange(len(labels)), validation), validation
