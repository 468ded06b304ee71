"""The bundled `ddp` as it is, with a ledger of the images that its steps are given: image n is entirely of the grey n.

    by_ddp.py FOLDER [options of ddp]

A line of a ledger is the number of a step and its images on this rank, written after the step and before a checkpoint.
"""

import os
import sys
from pathlib import Path

import torch

from algorun_train.data.batch import IGNORED, Batch
from algorun_train.jobs import ddp
from algorun_train.jobs.start import start
from algorun_train.loop.data_parallel_steps import DataParallelSteps
from algorun_train.options.job_options import DdpJobOptions
from bench.once.counting import introduce, work


def keep(folder: Path) -> None:
    plain, rank = DataParallelSteps.step, int(os.environ["RANK"])
    introduce(rank)
    ledger = (folder / f"rank-{rank}.txt").open("w")

    def step(self: DataParallelSteps, batches: list[Batch], total: int, rate: float, number: int) -> torch.Tensor:
        losses = plain(self, batches, total, rate, number)
        counted = [batch.inputs[batch.labels != IGNORED][:, 0, 0, 0] for batch in batches]
        images = ((torch.cat(counted) + 1) * 127.5).round().int().tolist()
        print(number, *images, file=ledger, flush=True)
        work(total, rank, number)
        return losses

    DataParallelSteps.step = step


if __name__ == "__main__":
    keep(Path(sys.argv.pop(1)))
    start(ddp.main, DdpJobOptions, "ddp")
