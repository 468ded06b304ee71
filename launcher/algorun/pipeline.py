"""Trains a model that does not fit one device, in stages on several ranks, under any launcher that sets torchrun's variables.

    import torch
    from algorun.pipeline import pipeline

    model = Net()  # equal weights on every rank: seed before
    images = torch.zeros(4, 3, 32, 32)  # one microbatch, in the shape that training uses
    pipe = pipeline(model, images, torch.nn.functional.cross_entropy, pp=2, microbatches=8)
    optimizer = torch.optim.AdamW(pipe.parameters())  # of this rank's stages
    for images, labels in batches(pipe.axes.dp_rank):  # 32 images; the ranks of one pipeline take the same
        loss = pipe.everywhere(pipe.step(images, labels)) / 8
        optimizer.step()
        optimizer.zero_grad()

Wrong arguments, or a model that cannot be cut, raise the same UserError on all ranks.
"""

from __future__ import annotations

from algorun_train.common.errors import UserError
from algorun_train.jobs.user_pipeline import pipeline
from algorun_train.parallel.cut.layer_list import untie

__all__ = ["UserError", "pipeline", "untie"]
