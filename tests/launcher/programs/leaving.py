"""Rank 3 leaves with 0 while the others need it: `leaving.py MODE`, in the first attempt only.

collective  at step 20, the others are in an all-reduce
return      the same, by the end of its script: the interpreter takes its time to unload torch
uneven      the second host's ranks have data for 20 steps only, the others for more
quiet       at step 20, the others wait for its word in the store, where no connection breaks
early       before init_process_group
work        at step 20, the others work on their own until the end
"""

import os
import sys
import time
from datetime import timedelta
from types import ModuleType

MODE, RANK, WORLD = sys.argv[1], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS, LAST = 20, 60
LEAVES = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and RANK in ((2, 3) if MODE == "uneven" else (3,))

if MODE == "early" and LEAVES:
    os._exit(0)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

dist.init_process_group("gloo", timeout=timedelta(seconds=3 if MODE == "early" else 1800))
store = dist.distributed_c10d._get_default_store()
# An optimizer loads torch's compiler, which takes 1.4 s of CPU, to tell it not to compile these functions.
sys.modules["torch._dynamo"] = compiler = ModuleType("torch._dynamo")
compiler.disable = lambda function, *_, **__: function
compiler.graph_break = lambda: None
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
if MODE == "work":
    # The group exists on this rank as soon as its own connections stand: a peer may still be connecting to others.
    store.set(f"connected-{RANK}", "")
    store.wait([f"connected-{rank}" for rank in range(WORLD)])
    dist.destroy_process_group()
for step in range(1, LAST + 1):
    weight.grad = torch.ones(1)
    if MODE == "quiet":
        store.set(f"{step}-{RANK}", "here")
        store.wait([f"{step}-{rank}" for rank in range(WORLD)])
    elif MODE != "work":
        dist.all_reduce(weight.grad)
    optimizer.step()
    if step == STEPS and LEAVES:
        if MODE in ("return", "uneven"):
            sys.exit(0)
        os._exit(0)
    time.sleep(0.01)
if MODE == "work":
    time.sleep(2)  # what it does alone outlasts the leaver's blame window
else:
    dist.destroy_process_group()
print("trained", flush=True)
