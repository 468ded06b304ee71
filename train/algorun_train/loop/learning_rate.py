"""The learning rate of each step.

Option --lr becomes a `LearningRateSchedule`. Before each step the training loop asks it for the rate and passes the rate
to `Stepper.step`, which calls `set_learning_rate`. The optimizer itself is built without a rate.
"""

from dataclasses import dataclass

import torch

from algorun_train.options.job_options import TrainOptions


@dataclass(frozen=True, slots=True)
class LearningRateSchedule:
    """The rate rises linearly from `start` to `peak` over `warmup` epochs; after every epoch it is multiplied by `gamma`."""

    start: float
    peak: float
    warmup: float
    gamma: float

    def at(self, epoch: int, progress: float) -> float:
        """The rate of a step in `epoch` (0-based) that ends `progress` epochs after the start of training."""
        share = min(progress / self.warmup, 1.0) if self.warmup else 1.0
        return (self.start + (self.peak - self.start) * share) * self.gamma**epoch


def learning_rate_schedule(options: TrainOptions, global_batch: int) -> LearningRateSchedule:
    """The schedule of a job whose steps take `global_batch` samples.

    With --scale-lr it follows Goyal et al. 2017 ("Accurate, large minibatch SGD"): --lr is meant for the reference batch,
    the peak is lr x global batch / reference batch, and the warm-up starts at lr.
    """
    if options.scale_lr:
        peak = options.lr * global_batch / options.reference_batch
        return LearningRateSchedule(min(options.lr, peak), peak, options.warmup_epochs, options.gamma)
    return LearningRateSchedule(0.0, options.lr, options.warmup_epochs, options.gamma)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Sets the rate of the next step. Every stepper calls this before every step."""
    for group in optimizer.param_groups:
        group["lr"] = rate
