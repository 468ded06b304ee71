"""Names that AWS's example scripts use, on ranks that hold two partitions."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
from torch import nn

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.torch.utils import rmsg
from tests.compat.smp_runs import say

smp.init({"pipeline_parallel_degree": 1, "microbatches": 8, "fast_mode": False, "optimize": "speed", "ddp": True})
cfg = smp.state.cfg
keys = ("partitions", "pipeline_parallel_degree", "microbatches", "prescaled_batch", "fp16", "shard_optimizer_state")
config = [getattr(cfg, key) for key in (*keys, "sharded_data_parallel_degree", "optimize")]
try:
    unknown = cfg.partitons
except AttributeError as error:
    unknown = str(error)
torch.manual_seed(0)
module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
model = smp.DistributedModel(module)
plain = copy.deepcopy(module)
model.eval()
modes = [model.module.training, model.train().module.training]
hooked = []
model.module.register_forward_hook(lambda *_: hooked.append(True))
optimizer = smp.DistributedOptimizer(smp.optimizers.FusedLAMB(model.parameters(), lr=0.1))


@smp.step
def train_step(model, batch):
    loss = model(batch).square().mean()
    model.backward(loss)
    return loss


batch = torch.randn(4, 4) * 30  # gradients longer than 1, so that the norm over both stages counts
uncut = smp.optimizers.FusedLAMB(plain.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    train_step(model, batch)
    optimizer.step()
    uncut.zero_grad()
    plain(batch).square().mean().backward()
    uncut.step()
folder = Path(sys.argv[1])
smp.save({"rank": smp.rank()}, str(folder / "state.pt"), partial=True, v3=True)
smp.barrier()
whole = model.state_dict(gather_to_rank0=True)
model.load_state_dict(whole, same_partition_load=True)
say(
    {
        "furthest": max(float((whole[name] - value).abs().max()) for name, value in plain.state_dict().items()),
        "config": config,
        "unknown": unknown,
        "names": [name for name, _ in model.named_parameters()],
        "unwrapped": type(model.module.module).__name__ if model.get_module() is model.module.module else "",
        "modes": modes,
        "hooked": len(hooked),
        "message": rmsg("hello"),
        "file": [
            next(
                path.name
                for path in sorted(folder.glob("state.pt_*"))
                if path.name.startswith(f"state.pt_{smp.pp_rank()}")
            ),
            smp.load(str(folder / "state.pt"))["rank"],
        ],
        "optimizer": optimizer.local_state_dict(gather_if_shard=False)["_smp_is_partial"],
        "loaded": whole.keys() == module.state_dict().keys() if smp.pp_size() == 1 else len(whole) == 4,
    }
)
