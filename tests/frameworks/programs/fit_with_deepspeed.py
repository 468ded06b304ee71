"""A line fitted by DeepSpeed on all ranks, and by plain torch on the same samples in one process: both weights are printed.

`fit_with_deepspeed.py STAGE [offload]`: a stage of ZeRO, with the optimizer, and under stage 3 the parameters, in the
memory of the host.
"""

from __future__ import annotations

import os
import sys

import deepspeed
import torch

STEPS = 20
RATE = 0.1
stage, offload = int(sys.argv[1]), sys.argv[2:] == ["offload"]
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def line() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 1)


def loss_of(model: torch.nn.Module, step: int, ranks: range) -> torch.Tensor:
    """The mean over the samples that these ranks have in this step: eight each."""
    generators = [torch.Generator().manual_seed(1000 * step + each) for each in ranks]
    inputs = torch.cat([torch.randn(8, 4, generator=generator) for generator in generators])
    return torch.nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))


def weights(model: torch.nn.Module) -> str:
    return " ".join(f"{each:.5f}" for parameter in model.parameters() for each in parameter.flatten().tolist())


zero: dict[str, object] = {"stage": stage}
if offload:
    zero["offload_optimizer"] = {"device": "cpu"}
    if stage == 3:
        zero["offload_param"] = {"device": "cpu"}
config = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_clipping": 0.0,  # DeepSpeed's default is 1.0, and torch clips nothing
    "optimizer": {"type": "Adam", "params": {"lr": RATE}},
    "zero_optimization": zero,
}
model = line()
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for step in range(STEPS):
    engine.backward(loss_of(engine, step, range(rank, rank + 1)))
    engine.step()
with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
    print(f"optimizer {type(engine.optimizer.optimizer).__name__} weights {weights(model)}", flush=True)

alone = line()
optimizer = torch.optim.Adam(alone.parameters(), lr=RATE)
for step in range(STEPS):
    optimizer.zero_grad()
    loss_of(alone, step, range(size)).backward()
    optimizer.step()
print(f"alone weights {weights(alone)}", flush=True)
