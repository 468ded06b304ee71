"""The same training with accelerate, resumed as its documentation says: load_state, then skip_first_batches."""

import json
import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader

from bench.once.counting import EPOCHS, SAMPLES, SAVED, Counts, arguments, introduce, work, write_counts


def train(accelerator: Accelerator, folder: Path, batch_size: int, workers: int) -> None:
    rank, file = accelerator.process_index, folder / "position.json"
    plain = Counts()
    loader = DataLoader(range(SAMPLES), batch_size, shuffle=True, num_workers=workers)
    optimizer = torch.optim.SGD(plain.parameters(), lr=1)
    model, optimizer, loader = accelerator.prepare(plain, optimizer, loader)
    first, done, steps = 0, 0, 0
    if file.exists():
        saved, first, done = json.loads(file.read_text())
        accelerator.load_state(saved)
    for epoch in range(first, EPOCHS):
        loader.set_epoch(epoch)
        skipped = done if epoch == first else 0
        for number, samples in enumerate(
            accelerator.skip_first_batches(loader, skipped) if skipped else loader, skipped + 1
        ):
            optimizer.zero_grad()
            accelerator.backward(model(epoch, samples) * accelerator.num_processes)
            optimizer.step()
            steps += 1
            work(len(samples) * accelerator.num_processes, rank, steps)
            if number % SAVED == 0:
                saved = str(folder / f"epoch-{epoch}-step-{number}")
                accelerator.save_state(saved)
                if rank == 0:
                    file.with_suffix(".new").write_text(json.dumps([saved, epoch, number]))
                    os.replace(file.with_suffix(".new"), file)
    if rank == 0:
        write_counts(plain, folder)


def main() -> None:
    args = arguments()
    set_seed(0)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    introduce(accelerator.process_index)
    train(accelerator, args.folder, args.batch_size, args.workers)
    accelerator.end_training()


if __name__ == "__main__":
    main()
