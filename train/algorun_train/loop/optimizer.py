"""The optimizer, and the learning rate as a pure function of how far training is."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from algorun_train.options.config import TrainConfig


@dataclass(frozen=True, slots=True)
class Schedule:
    """Rises linearly from `start` to `peak` over `warmup` epochs, and shrinks by `gamma` after each epoch."""

    start: float
    peak: float
    warmup: float
    gamma: float

    def at(self, epoch: int, progress: float) -> float:
        """The rate of a step in `epoch` (0-based) that ends at `progress` epochs since the start."""
        share = min(progress / self.warmup, 1.0) if self.warmup else 1.0
        return (self.start + (self.peak - self.start) * share) * self.gamma**epoch


def schedule(config: TrainConfig, global_batch: int) -> Schedule:
    """The schedule of a job. With scale_lr, the rule and warm-up of Goyal et al. 2017 (large minibatch SGD):
    lr is meant for the reference batch, the peak is lr x global batch / reference batch, and warm-up starts at lr."""
    if config.scale_lr:
        peak = config.lr * global_batch / config.reference_batch
        return Schedule(min(config.lr, peak), peak, config.warmup_epochs, config.gamma)
    return Schedule(0.0, config.lr, config.warmup_epochs, config.gamma)


def optimizer(config: TrainConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW or SGD in the fused form. Biases, norms and other vectors are not decayed."""
    named = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in named if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in named if p.dim() <= 1], "weight_decay": 0.0},
    ]
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=True)
    return torch.optim.AdamW(groups, lr=config.lr, fused=True)
