"""A user's script with algorun.data: any number of ranks goes on with its checkpoint."""

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from algorun.data import StepSampler
from bench.once.counting import EPOCHS, SAMPLES, SAVED, Counts, arguments, introduce, work, write_counts


def train(folder: Path, batch_size: int, workers: int) -> None:
    rank, file, asked = dist.get_rank(), folder / "state.pt", torch.zeros(1)
    signal.signal(signal.SIGTERM, lambda *_: asked.fill_(1))
    model = Counts()
    sampler = StepSampler(range(SAMPLES), batch_size)
    loader = DataLoader(range(SAMPLES), batch_sampler=sampler, num_workers=workers)
    if file.exists():
        state = torch.load(file)
        model.load_state_dict(state["model"])
        sampler.load_state_dict(state["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    replica, steps = DistributedDataParallel(model), 0
    for epoch in sampler.epochs(EPOCHS):
        for samples in sampler.counted(loader):
            optimizer.zero_grad()
            (replica(epoch, samples[: sampler.valid]) * sampler.replicas).backward()  # DDP divides by the replicas
            optimizer.step()
            steps += 1
            work(sampler.total, rank, steps)
            stop = asked.clone()
            dist.all_reduce(stop)
            if rank == 0 and (stop or steps % SAVED == 0):
                aside = file.with_suffix(".new")
                torch.save({"model": model.state_dict(), "data": sampler.state_dict()}, aside)
                os.replace(aside, file)
            if stop:
                return
    if rank == 0:
        write_counts(model, folder)


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    introduce(dist.get_rank())
    train(args.folder, args.batch_size, args.workers)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
