"""The model that a finished job leaves behind, and how to build it."""

from pathlib import Path
from typing import Any

import torch

from algorun_train.files import write, write_json

WEIGHTS, DESCRIPTION = "model.pt", "model.json"


def write_model(folder: Path, weights: dict[str, torch.Tensor], description: dict[str, Any]) -> Path:
    """`model.pt` (a state dict on the CPU) and `model.json`, each of them whole or absent; returns the former."""
    on_cpu = {name: tensor.detach().cpu() for name, tensor in weights.items()}
    write(folder / WEIGHTS, lambda file: torch.save(on_cpu, file))
    write_json(folder / DESCRIPTION, description)
    return folder / WEIGHTS
