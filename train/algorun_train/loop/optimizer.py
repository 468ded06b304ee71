"""The optimizer of a job."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from algorun_train.options.job_options import TrainOptions

NO_RATE_YET = 0.0  # if a stepper forgets `set_learning_rate`, nothing trains, and a test sees it


def build_optimizer(options: TrainOptions, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW or SGD in torch's fused form, without a learning rate: every step sets one (`learning_rate.set_learning_rate`).

    Weight decay applies to parameters with two or more dimensions, not to biases and norms. Shares get SGD's form for many
    tensors at once: torch cannot fuse it for DTensors (no sharding strategy for aten._fused_sgd_ in 2.13).
    """
    trainable = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.dim() > 1], "weight_decay": options.weight_decay},
        {"params": [p for p in trainable if p.dim() <= 1], "weight_decay": 0.0},
    ]
    if options.optimizer == "sgd":
        fused = not any(isinstance(p, DTensor) for p in trainable)
        return torch.optim.SGD(groups, lr=NO_RATE_YET, momentum=options.momentum, fused=fused, foreach=not fused)
    return torch.optim.AdamW(groups, lr=NO_RATE_YET, fused=True)
