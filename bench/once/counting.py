"""A model that counts what it was trained on, for scripts that bench/exactly_once.py kills.

There is one weight for each epoch and sample. The gradient of a sample is -1 at its own weight, so after SGD with rate 1 a
weight says how often the sample was trained on. A step that no checkpoint has kept is in no later model, and does not count.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch import nn

EPOCHS, SAMPLES = 2, 96
SAMPLE_S = 0.02  # seconds of a step, for each of its samples: about 4 s of training in all, whatever the layout
SAVED = 2  # steps between checkpoints


class Counts(nn.Module):
    """`forward` returns the loss of samples of an epoch. `rows`: 1 where a program does not tell its model the epoch."""

    def __init__(self, rows: int = EPOCHS) -> None:
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(rows, SAMPLES))

    def forward(self, epoch: int, samples: torch.Tensor) -> torch.Tensor:
        return -self.seen[epoch, samples].sum()


def arguments() -> argparse.Namespace:
    """What the benchmark gives every script: `folder`, `batch_size` of a rank, `workers` of a DataLoader."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    return parser.parse_args()


def introduce(rank: int) -> None:
    """Tells the benchmark which process to kill."""
    print(f"pid {rank} {os.getpid()}", flush=True)


def work(samples: int, rank: int, step: int) -> None:
    """The rest of a step; the benchmark's clock starts at the first one."""
    if rank == 0:
        print(f"trained step {step}", flush=True)
    time.sleep(SAMPLE_S * samples)


def write_counts(model: nn.Module, folder: Path) -> None:
    """The trained model's counts, for the benchmark."""
    values = model.get_parameter("seen").detach()
    assert torch.equal(values, values.round()), "not a count"
    (folder / "counts.json").write_text(json.dumps(values.int().tolist()))
