"""`Stepper`: the interface through which the training loop computes steps, and helpers that all steppers use."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from algorun_train.data.batch import Batch
from algorun_train.ranks.communicator import Communicator


class Stepper(Protocol):
    """Computes steps. Implementations: DataParallelSteps, PipelineSteps. Call all methods on all ranks."""

    def train(self) -> None:
        """Sets training mode; call it before `step`."""
        ...

    def eval(self) -> None:
        """Sets evaluation mode; call it before `evaluate`."""
        ...

    def step(self, batches: Sequence[Batch], total: int, rate: float, number: int) -> torch.Tensor:
        """Makes optimizer step `number` of the job (from 1) at learning rate `rate`.

        `batches` are this rank's batches, one for each accumulation pass. `total` counts the labels
        of all ranks that count. Returns
        the sum of this rank's losses, a scalar on the device, without waiting for the device.
        """
        ...

    def evaluate(self, batch: Batch) -> torch.Tensor:
        """Evaluates this rank's batch. Returns float64 [sum of losses, number of right answers, number of labels that count],
        on the device.

        Each sample counts once over all ranks: if several ranks compute a batch together, one of them returns its numbers
        and the others return zeros.
        """
        ...


def draws_random_numbers(modules: Sequence[nn.Module]) -> bool:
    """Whether a training step draws random numbers: dropout does, and a module may say so itself."""
    if any(getattr(module, "draws_random_numbers", False) for module in modules):
        return True
    return any(isinstance(m, nn.Dropout) and m.p > 0 for module in modules for m in module.modules())


def seed_step(seed: int, number: int, comm: Communicator, replica: int | None = None) -> None:
    """Seeds the generators of this rank for one step from (seed, step, rank) only, so a checkpoint need not save their state.
    Ranks that compute the same batch together give their common number, `replica`, instead of the rank.

    torch.manual_seed would also seed kinds of devices that are not there: it keeps a stack trace for each of them, which takes
    0.7 ms.
    """
    value = ((seed * 1_000_003 + number) * 65_537 + (comm.rank if replica is None else replica)) % 2**63
    torch.default_generator.manual_seed(value)
    if comm.device.type == "cuda":
        torch.cuda.manual_seed(value)
