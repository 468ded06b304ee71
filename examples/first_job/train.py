"""A script for torchrun that outlives a stop and a killed host. The five lines that do it end with their number."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import algorun  # 1

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--steps", type=int, default=50, help="of an epoch")
options = parser.parse_args()

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank, device = dist.get_rank(), torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

kept = Path(os.environ.get("ALGORUN_CHECKPOINT_DIR", "checkpoints"), "last.pt")  # 2
found = [torch.load(kept, map_location="cpu") if rank == 0 and kept.exists() else {"epoch": 0}]
dist.broadcast_object_list(found)  # 3: only the host of rank 0 has the file
if found[0]["epoch"]:
    model.module.load_state_dict(found[0]["model"])
    optimizer.load_state_dict(found[0]["optimizer"])

for epoch in range(found[0]["epoch"], options.epochs):
    order = torch.Generator().manual_seed(1000 * epoch + rank)  # of this epoch and rank: the same after a resume
    for _ in range(options.steps):
        inputs = torch.randn(32, 16, generator=order).to(device)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch: {epoch + 1}/{options.epochs} train_loss: {loss.item():.5f}", flush=True)
        state = {"epoch": epoch + 1, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        kept.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, kept.with_suffix(".part"))
        os.replace(kept.with_suffix(".part"), kept)  # 4: whoever dies now leaves the old file or the new one
    if algorun.should_stop():  # 5: the same answer on every rank
        break

if rank == 0:
    torch.save(model.module.state_dict(), os.path.join(os.environ.get("SM_MODEL_DIR", "."), "model.pt"))
dist.destroy_process_group()
