"""What a finished job leaves: the model, how to build it, and a summary."""

from pathlib import Path
from typing import Any

import torch

from .files import write, write_json

WEIGHTS, DESCRIPTION, SUMMARY = "model.pt", "model.json", "summary.json"


def write_model(folder: Path, weights: dict[str, torch.Tensor], description: dict[str, Any]) -> Path:
    """`model.pt` (a state dict on the CPU) and `model.json`, each of them whole or absent; returns the former."""
    on_cpu = {name: tensor.detach().cpu() for name, tensor in weights.items()}
    write(folder / WEIGHTS, lambda file: torch.save(on_cpu, file))
    write_json(folder / DESCRIPTION, description)
    return folder / WEIGHTS


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """`summary.json`: the order of its keys is the order in which a launcher shows them."""
    write_json(folder / SUMMARY, summary)


def clear_summary(folder: Path) -> None:
    """Removes what an earlier run left, so that nobody takes it for this run's."""
    (folder / SUMMARY).unlink(missing_ok=True)
