"""Weights to start from. All must fit the model, except the head: it may be for other classes."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from algorun_train.common.errors import UserError

HEAD = "head."


def start_from(model: nn.Module, path: Path) -> str:
    """Copies the weights in `path` (a .pt file, or a folder with model.pt) into `model`. Returns a line for the log.

    Raises UserError if the file cannot be read, or if tensors outside the head are missing, unknown or of another shape.
    """
    where = f"option --init-from: {path}"
    weights = _read(where, path / "model.pt" if path.is_dir() else path)
    own = model.state_dict()
    fresh = [n for n in own if n.startswith(HEAD) and (n not in weights or weights[n].shape != own[n].shape)]
    wrong = [f"{n} is missing" for n in own if n not in weights and n not in fresh]
    wrong += [f"{n} is unknown here" for n in weights if n not in own and not n.startswith(HEAD)]
    wrong += [
        f"{n} is {list(weights[n].shape)}, here {list(own[n].shape)}"
        for n in own
        if n in weights and n not in fresh and weights[n].shape != own[n].shape
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise UserError(
            f"{where} does not fit the model: {'; '.join(wrong[:3])}{more}; allowed: equal names and shapes, save for "
            f"{HEAD}*; fix: give --model, --image-size, --patch-size, --width, --depth as in the file's model.json"
        )
    model.load_state_dict({n: weights[n] for n in own if n not in fresh}, strict=False)
    anew = f"; starting anew: {', '.join(fresh)} (other number of classes)" if fresh else ""
    return f"init-from {path}: {len(own) - len(fresh)} of {len(own)} tensors taken{anew}"


def _read(where: str, file: Path) -> Mapping[str, torch.Tensor]:
    try:
        weights = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"{where} cannot be read: {error.strerror}; fix: give a .pt file of weights") from None
    except Exception as error:  # torch has no one class for files that are not its own
        first = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise UserError(f"{where} holds no weights: {first}; fix: give a state dict saved by torch.save") from None
    if not isinstance(weights, Mapping) or not all(isinstance(t, torch.Tensor) for t in weights.values()):
        raise UserError(f"{where} holds a {type(weights).__name__}; allowed: a state dict of tensors; fix: save that")
    return weights
