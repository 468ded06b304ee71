"""Which samples each rank takes at each step. Pure; the order depends on seed and epoch, not on the layout of ranks.

The order of an epoch is one permutation. A step takes the next `global_batch` samples of it, and the ranks share these
slice by slice. So the same samples form a step whether 4 ranks take 32 each or one rank takes 128, an epoch can be
taken up again after any number of samples, with any number of ranks, and every sample comes exactly once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batching:
    """How many samples a step takes: `batch` per replica and pass, in `accumulation` passes, for replica number `replica`
    of `replicas`."""

    batch: int
    accumulation: int
    replica: int
    replicas: int

    @property
    def global_batch(self) -> int:
        return self.batch * self.accumulation * self.replicas


@dataclass(frozen=True, slots=True)
class Piece:
    """What one rank computes in one pass: always `batch` indices, of which the first `valid` count."""

    indices: Indices
    valid: int


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step: samples [begin, end) of the epoch's order, over all ranks; `pieces` are this rank's."""

    epoch: int
    begin: int
    end: int
    pieces: tuple[Piece, ...]

    @property
    def total(self) -> int:
        return self.end - self.begin


def permutation(count: int, seed: int, epoch: int) -> Indices:
    """The order of `count` samples in `epoch`. RandomState's streams are frozen for all numpy versions (NEP 19)."""
    return np.random.RandomState([seed, epoch]).permutation(count)


def steps_in(samples: int, global_batch: int) -> int:
    """Steps that `samples` samples need; the last one may be short."""
    return -(-samples // global_batch)


def take(order: Indices, begin: int, batching: Batching, epoch: int = 0) -> Step:
    """The step that starts after `begin` samples of `order`.

    Short pieces at the end of an epoch are filled up with repeated samples that do not count, so that shapes never
    change and every rank takes part in every collective, even with nothing left to do.
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
    return Step(epoch, begin, end, tuple(pieces))


def walk(order: Indices, begin: int, batching: Batching, epoch: int = 0) -> Iterator[Step]:
    """All steps of an epoch from `begin` samples on."""
    for at in range(begin, len(order), batching.global_batch):
        yield take(order, at, batching, epoch)


def held_out(labels: Indices, share: float) -> tuple[Indices, Indices]:
    """Indices for training and validation: of each class the same `share` is held out. Always the same split."""
    random, hold = np.random.RandomState(0), []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        size = min(max(1, round(share * len(members))), len(members) - 1)
        hold.append(random.permutation(members)[:size])
    validation = np.sort(np.concatenate(hold))
    return np.setdiff1d(np.arange(len(labels)), validation), validation
