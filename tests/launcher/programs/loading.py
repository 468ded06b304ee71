"""Trains with DDP and a DataLoader whose data set hangs on rank 0: `loading.py WORKERS CONTEXT`."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __getitem__(self, index):
        if os.environ["RANK"] == "0" and index == 120:
            time.sleep(1000)
        return torch.ones(4), torch.zeros(())

    def __len__(self):
        return 400


def main():
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, labels in DataLoader(Images(), 8, num_workers=int(sys.argv[1]), multiprocessing_context=sys.argv[2]):
        optimizer.zero_grad()
        (model(inputs).squeeze(1) - labels).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
