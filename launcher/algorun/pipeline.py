"""A model that does not fit one device, in stages on several ranks, under any launcher that sets torchrun's variables.

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

`help(pipeline)` tells of the options. `untie(model)` gives weights that two layers share, such as embeddings and head, a
copy each, which train apart from then on. What is wrong with the arguments or the model is a UserError on all ranks.
"""

from __future__ import annotations

from algorun_train.errors import UserError
from algorun_train.parallel.cut.layer_list import untie
from algorun_train.user_pipeline import pipeline

__all__ = ["UserError", "pipeline", "untie"]
