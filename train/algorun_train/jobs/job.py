"""What all training entrypoints do around the training itself."""

import os
from typing import Any

import torch

from algorun_train.files import writable
from algorun_train.loop.loop import Outcome
from algorun_train.loop.summary import clear_summary
from algorun_train.options import paths
from algorun_train.options.config import TrainConfig


def ignore(_: object) -> None:
    """What ranks other than 0 do with their metrics."""


def prepare_folders(where: paths.Paths) -> None:
    """Makes the folders that a job writes to. UserError where one cannot be written."""
    for folder, name in ((where.checkpoints, "checkpoint"), (where.model, "model"), (where.output, "output")):
        writable(folder, f"{name} folder", f"--{name}-dir with a folder that can be written")
    clear_summary(where.output)


def set_numerics(config: TrainConfig) -> None:
    """How exactly torch computes in this process. Before the first tensor is made."""
    if config.matmul_precision:
        torch.set_float32_matmul_precision(config.matmul_precision)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it (torch's notes on randomness)
        torch.use_deterministic_algorithms(True)


def numerics(config: TrainConfig, device: torch.device) -> str:
    """The same in words."""
    matmul = f", matrix products in {config.matmul_precision} precision" if config.matmul_precision else ""
    return f"{config.precision}{matmul} on {device.type}"


def rate_line(config: TrainConfig, peak: float) -> str:
    """The learning rate in words."""
    scaled = f", scaled from {config.lr:g} at a global batch of {config.reference_batch}" if config.scale_lr else ""
    return (
        f"learning rate: {peak:g}{scaled}, after {config.warmup_epochs:g} epochs of warm-up, "
        f"x {config.gamma:g} per epoch"
    )


def figures(outcome: Outcome, speed: str) -> dict[str, Any]:
    """The summary of a finished run; `speed` is the name of its samples per second."""
    return {
        "loss": outcome.val_loss,
        "accuracy": outcome.val_accuracy,
        speed: outcome.samples_per_s,
        "epochs": outcome.position.epoch,
        "steps": outcome.position.step,
    }


def result(outcome: Outcome) -> dict[str, Any]:
    """What a model's description says of its training."""
    return {
        "val_loss": outcome.val_loss,
        "val_accuracy": outcome.val_accuracy,
        "epochs": outcome.position.epoch,
        "steps": outcome.position.step,
    }
