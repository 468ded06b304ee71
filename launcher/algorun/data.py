"""Gives every rank its samples, each sample exactly once an epoch, also after kills and with other numbers of ranks.

    import torch
    from algorun.data import StepSampler

    sampler = StepSampler(dataset, batch_size=32, seed=0)  # 32 on each rank
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=4)
    for epoch in sampler.epochs(10):
        for images, labels in sampler.counted(loader):
            train(images, labels)  # then save sampler.state_dict() with the model

It works under any launcher (algorun, torchrun, mpirun) and without one.
"""

from __future__ import annotations

from algorun_train.common.errors import UserError
from algorun_train.data.order_sampler import StepSampler

__all__ = ["StepSampler", "UserError"]
