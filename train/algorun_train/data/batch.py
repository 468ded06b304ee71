"""What the training loop wants of data, whatever it is: counts, batches, and what samples are called."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from .sampler import Batching, Step

IGNORED = -100  # label where nothing counts: cross_entropy's own default for ignore_index


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's share of one pass: inputs and labels [B, ..], labels IGNORED in samples that do not count. The first
    `valid` samples do."""

    inputs: torch.Tensor
    labels: torch.Tensor
    valid: int


class Source(Protocol):
    """Both splits, equal on all ranks."""

    @property
    def unit(self) -> str:
        """What samples are called, in the plural: images, sequences."""
        ...

    @property
    def train_count(self) -> int: ...

    @property
    def validation_count(self) -> int: ...

    def training(
        self, epoch: int, done: int, epochs: int, seed: int, batching: Batching
    ) -> Iterator[tuple[Step, tuple[Batch, ...]]]:
        """Steps from `done` samples of `epoch` to the end of the last epoch, with this rank's batch for each pass."""
        ...

    def evaluation(self, batching: Batching) -> Iterator[Batch]:
        """This rank's share of the validation split; all ranks get the same number of batches."""
        ...

    def without_inputs(self) -> "Source":
        """The same batches for ranks that need the labels and shapes only: the inputs may hold anything."""
        ...
