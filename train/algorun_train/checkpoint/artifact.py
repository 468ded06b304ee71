"""The artifact: the weights of a trained model, and a description from which the model can be built again."""

from collections.abc import Mapping
from pathlib import Path

import torch

from algorun_train.common.files import write, write_json

WEIGHTS, DESCRIPTION = "model.pt", "model.json"


def write_model(folder: Path, weights: dict[str, torch.Tensor], description: Mapping[str, object]) -> Path:
    """Writes `model.pt` (a state dict on the CPU) and `model.json` to `folder`; returns the path of `model.pt`."""
    on_cpu = {name: tensor.detach().cpu() for name, tensor in weights.items()}
    write(folder / WEIGHTS, lambda file: torch.save(on_cpu, file))
    write_description(folder, description)
    return folder / WEIGHTS


def write_description(folder: Path, description: Mapping[str, object]) -> None:
    """Writes `model.json` to `folder`."""
    write_json(folder / DESCRIPTION, description)
