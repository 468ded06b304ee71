"""The artifact: the weights of a trained model, and the description from which it can be built."""

from pathlib import Path
from typing import Any

import torch

from algorun_train.files import write, write_json

WEIGHTS, DESCRIPTION = "model.pt", "model.json"


def write_model(folder: Path, weights: dict[str, torch.Tensor], description: dict[str, Any]) -> Path:  # Any: JSON
    """Writes `model.pt` (a state dict on the CPU) and `model.json` to `folder`; returns the path of `model.pt`."""
    on_cpu = {name: tensor.detach().cpu() for name, tensor in weights.items()}
    write(folder / WEIGHTS, lambda file: torch.save(on_cpu, file))
    write_json(folder / DESCRIPTION, description)
    return folder / WEIGHTS
