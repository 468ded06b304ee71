"""`BatchSource` and `Batch`: the interface between the training loop and all kinds of data."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from .sampler import Batching, Epochs, OptimizerStep

IGNORED = -100  # label of a sample that does not count: cross_entropy's default for ignore_index


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's share of one pass: inputs [B, ..] and labels [B, ..]. `valid` samples count; the labels of the others
    are IGNORED."""

    inputs: torch.Tensor
    labels: torch.Tensor
    valid: int


class BatchSource(Protocol):
    """The training and the validation split. Both are equal on all ranks."""

    @property
    def unit(self) -> str:
        """The name of samples in log lines, in the plural: images, sequences."""
        ...

    @property
    def sample_tokens(self) -> int:
        """Tokens of a sample, equal for all of them; 0 if samples are not text."""
        ...

    @property
    def train_count(self) -> int: ...

    @property
    def validation_count(self) -> int: ...

    @property
    def validation_weight(self) -> int:
        """The number of labels of the validation split that count, over all ranks."""
        ...

    def training(self, epochs: Epochs, batching: Batching) -> Iterator[tuple[OptimizerStep, tuple[Batch, ...]]]:
        """Yields each step of `epochs` with this rank's batches, one for each pass."""
        ...

    def evaluation(self, batching: Batching) -> Iterator[Batch]:
        """Yields this rank's share of the validation split. All ranks get the same number of batches."""
        ...

    def without_inputs(self) -> "BatchSource":
        """The same batches with any values as inputs, for ranks that need only labels and shapes."""
        ...
