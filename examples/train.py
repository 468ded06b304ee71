"""A script like any other: hyperparameters as arguments, torch.distributed from the environment."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.1)
options, _ = parser.parse_known_args()

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank, device = dist.get_rank(), torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(rank)).to(device)
targets = inputs.sum(dim=1, keepdim=True)
for epoch in range(options.epochs):
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print(f"epoch: {epoch + 1}/{options.epochs} train_loss: {loss.item():.4f}", flush=True)
if rank == 0:
    torch.save(model.module.state_dict(), os.path.join(os.environ.get("SM_MODEL_DIR", "."), "model.pt"))
dist.destroy_process_group()
