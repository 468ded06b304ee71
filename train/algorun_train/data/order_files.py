"""The order of samples that lie in files, of which each rank may be able to read only some. Pure.

Each file has a permutation of its own, f(seed, epoch, name). What is left of an epoch is therefore one number for each
file: how many samples of its permutation are consumed. That number means the same to any ranks that hold the file later.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from .sampler import Batching, Indices, OptimizerStep, permutation, take

WHOLE = ""  # the name of a dataset that is not given as files; its order is `permutation(count, seed, epoch)` as it is

Consumed = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class File:
    """A file of a dataset and the number of its samples."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Holders:
    """The ranks that can read the same files, such as those of a host. `files` are in the order of their dataset."""

    files: tuple[File, ...]
    replicas: int

    @property
    def count(self) -> int:
        return sum(file.count for file in self.files)


@dataclass(frozen=True, slots=True)
class Order:
    """An epoch's order for some holders: indices in their dataset, and the file of each (its place in `files`). The first
    `begin` samples are consumed."""

    indices: Indices
    files: Indices
    begin: int


def order_of(holders: Holders, consumed: Consumed, seed: int, epoch: int) -> Order:
    """The order of all samples that these ranks can read. If the same ranks have consumed the first k of it, it does not
    change; else what other ranks have consumed comes first."""
    counts = np.array([file.count for file in holders.files])
    begins = np.cumsum(counts) - counts
    own = [permutation(file.count, file_seed(seed, file.name), epoch) for file in holders.files]
    by_file = np.concatenate([at + begin for at, begin in zip(own, begins, strict=True)])
    if len(counts) == 1:
        return Order(by_file, np.zeros(len(by_file), np.int64), consumed[holders.files[0].name])
    mixed = file_seed(seed, "\n".join(file.name for file in holders.files))
    files = np.repeat(np.arange(len(counts)), counts)[permutation(int(counts.sum()), mixed, epoch)]
    places = np.argsort(files, kind="stable")  # where the samples of file 0 stand, then those of file 1, ..
    indices, turn = np.empty_like(by_file), np.empty_like(by_file)
    indices[places] = by_file
    turn[places] = np.concatenate([np.arange(count) for count in counts])
    left = turn >= np.array([consumed[file.name] for file in holders.files])[files]
    first = np.argsort(left, kind="stable")
    return Order(indices[first], files[first], int(len(left) - left.sum()))


def file_seed(seed: int, name: str) -> int:
    return seed if name == WHOLE else zlib.crc32(f"{seed}/{name}".encode())


@dataclass(frozen=True, slots=True)
class FileLayout:
    """How the ranks take an epoch: `batch` samples per rank and pass, in `accumulation` passes. This rank is number
    `replica` of `holders[mine]`. `drop`: steps that are not full on every rank are left out, instead of filled up."""

    holders: tuple[Holders, ...]
    mine: int
    replica: int
    batch: int
    accumulation: int
    drop: bool

    @property
    def replicas(self) -> int:
        return sum(each.replicas for each in self.holders)

    def batching(self, number: int) -> Batching:
        return Batching(self.batch, self.accumulation, self.replica, self.holders[number].replicas)

    def batches(self) -> list[int]:
        """The samples of a step, for each of the holders."""
        return [self.batching(number).global_batch for number in range(len(self.holders))]

    def steps(self, left: list[int]) -> int:
        """The number of steps, equal on all ranks, if each of the holders has `left` samples."""
        each = zip(left, self.batches(), strict=True)
        return min(n // batch for n, batch in each) if self.drop else max(-(-n // batch) for n, batch in each)

    def taken(self, left: list[int], steps: int) -> list[int]:
        """How many samples each of the holders has consumed after `steps` steps."""
        return [min(steps * batch, n) for n, batch in zip(left, self.batches(), strict=True)]

    def consumed(self, before: Consumed, seed: int, epoch: int, steps: int) -> dict[str, int]:
        """The samples of each file that are consumed `steps` steps after `before`."""
        after = dict(before)
        for holders, count in zip(self.holders, self.taken(self.left(before), steps), strict=True):
            if len(holders.files) == 1:
                after[holders.files[0].name] += count
                continue
            order = order_of(holders, before, seed, epoch)
            found = np.bincount(order.files[order.begin : order.begin + count], minlength=len(holders.files))
            for file, more in zip(holders.files, found.tolist(), strict=True):
                after[file.name] += more
        return after

    def left(self, consumed: Consumed) -> list[int]:
        """How many samples are left for each of the holders."""
        return [sum(file.count - consumed[file.name] for file in each.files) for each in self.holders]

    def walk(self, consumed: Consumed, seed: int, epoch: int) -> Iterator[OptimizerStep]:
        """Yields this rank's steps to the end of the epoch. `Step.total` counts all ranks."""
        left = self.left(consumed)
        holders, batching = self.holders[self.mine], self.batching(self.mine)
        order = order_of(holders, consumed, seed, epoch)
        for number in range(self.steps(left)):
            begin, end = (sum(self.taken(left, at)) for at in (number, number + 1))
            at = min(order.begin + number * batching.global_batch, holders.count)  # its samples may end before others'
            yield OptimizerStep(epoch, begin, end, take(order.indices, at, batching).pieces, weight=end - begin)
