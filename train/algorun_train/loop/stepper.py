"""What the training loop asks of a way of computing steps, and what such ways have in common."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from algorun_train.data.batch import Batch


class Stepper(Protocol):
    """A way of computing steps: DataParallelSteps, PipelineSteps. Call all methods on all ranks."""

    def train(self) -> None:
        """Training mode, for `step`."""
        ...

    def eval(self) -> None:
        """Evaluation mode, for `evaluate`."""
        ...

    def step(self, batches: Sequence[Batch], total: int, rate: float, number: int) -> torch.Tensor:
        """One optimizer step at learning rate `rate`, the `number`-th of the job (from 1).

        `batches` holds this rank's batch of each accumulation pass, `total` counts the samples of all ranks. Returns the
        sum of this rank's losses, a scalar on the device. The device is not waited for.
        """
        ...

    def evaluate(self, batch: Batch) -> torch.Tensor:
        """float64 [sum of losses, right answers, samples counted], on the device.

        Over all ranks each sample counts once: if several ranks compute a batch together, one of them returns its
        figures and the others return zeros.
        """
        ...


def draws_random_numbers(modules: Sequence[nn.Module]) -> bool:
    """Whether a training step draws random numbers: dropout does."""
    return any(isinstance(m, nn.Dropout) and m.p > 0 for module in modules for m in module.modules())


def seed_step(seed: int, number: int, rank: int) -> None:
    """Seeds torch's generators for one step. They depend on (seed, step, rank) only, so a checkpoint need not keep them."""
    torch.manual_seed(((seed * 1_000_003 + number) * 65_537 + rank) % 2**63)
