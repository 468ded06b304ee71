"""Makes optimizer steps: `stepping.py STEPS [FAILS]`; in its first FAILS attempts each rank fails after its steps.

No failure is that of the attempt before: the same one twice would be final.
"""

import os
import sys
import time

import torch

weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(int(sys.argv[1])):
    weight.grad = torch.ones(2)
    optimizer.step()
    time.sleep(0.02)
print("stepped", flush=True)
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if attempt < int((*sys.argv, "0")[2]):
    raise (ValueError, KeyError)[attempt % 2]("planned")
