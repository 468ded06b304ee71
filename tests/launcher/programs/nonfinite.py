"""Trains a small model in ranks, and breaks something at one step of one rank: `nonfinite.py WHAT RANK STEP [HOW ..]`.

WHAT: loss, gradient, weight (the state of the optimizer), overflow (bfloat16), omit (no rank makes the step), nothing. HOW: clip, accumulate, two (optimizers),
shard (FSDP2), alone (no DDP), save (a checkpoint after each step), sampler (algorun.data), scaler (a GradScaler's own way).
"""

import os
import sys
import time

import torch
from torch import nn

what, broken_rank, broken_step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
how = sys.argv[4:]
rank, steps = int(os.environ["RANK"]), int(os.environ.get("STEPS", "12"))
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
model.register_parameter("unused", nn.Parameter(torch.ones(3)))
if "shard" in how:
    from torch.distributed.fsdp import fully_shard

    for layer in (model[0], model[2]):
        fully_shard(layer)
    model = fully_shard(model)
elif "alone" not in how:
    model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
inner = getattr(model, "module", model)
if "two" in how:
    optimizers = [torch.optim.Adam(inner[0].parameters(), lr=1e-3), torch.optim.Adam(inner[2:].parameters(), lr=1e-3)]
else:
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3)]
passes = 2 if "accumulate" in how else 1


def batches():
    torch.manual_seed(rank)
    if "sampler" not in how:
        yield from (torch.randn(4, 8) for _ in range(steps * passes))
        return
    from algorun.data import StepSampler

    data = torch.randn(4 * steps * int(os.environ["WORLD_SIZE"]), 8)
    sampler = StepSampler(data, batch_size=4)
    yield from sampler.counted(torch.utils.data.DataLoader(data, batch_sampler=sampler))


def here(step):
    return rank == broken_rank and step == broken_step


def local(tensor):
    return getattr(tensor, "_local_tensor", tensor)


given = batches()
for step in range(1, steps + 1):
    for turn in range(passes):
        inputs = next(given)
        last = turn == passes - 1
        with torch.autocast("cpu", torch.bfloat16, enabled=what == "overflow"):
            if here(step) and last and what == "overflow":
                inputs = inputs * 1e38
            loss = model(inputs).square().mean()
        if here(step) and last and what == "loss":
            loss = loss * float("nan")
        (loss / passes).backward()
    if here(step) and what == "gradient":
        local(inner[2].weight.grad)[0] = float("nan")
    if "clip" in how:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if here(step) and what == "weight":
        local(optimizers[-1].state[inner[2].weight]["exp_avg"])[0] = float("nan")
    for optimizer in optimizers:
        if what != "omit" or step != broken_step:
            optimizer.step()
        optimizer.zero_grad()
    if "save" in how and rank == 0:
        with open(os.path.join(os.environ["ALGORUN_CHECKPOINT_DIR"], f"step-{step}"), "w") as file:
            file.write("state")
    time.sleep(1.0 if "long" in how else 0.02)
held = torch.cat([local(each).detach().flatten() for each in inner.parameters()]).tolist()
print("trained", flush=True)
print("weights", rank, " ".join(each.hex() for each in held), flush=True)
torch.distributed.destroy_process_group()
