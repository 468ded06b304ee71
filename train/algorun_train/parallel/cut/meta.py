"""What a function does in a stage that has shapes and types of its tensors, but not their values."""

import re
from typing import Any

import torch

from algorun_train.parallel.trees import mapped

META = torch.device("meta")
MOVES = (torch.Tensor.cpu, torch.Tensor.cuda)


def computed(func: Any, args: Any, kwargs: Any) -> Any:
    """The function's result for tensors that are all on meta; a move to another device leaves them there.

    Raises what torch raises where the result depends on values, see `needs_values`.
    """
    if func in MOVES:
        return args[0]
    args, kwargs = mapped((args, kwargs), on_meta)
    if func is torch.Tensor.to:  # the only one that takes a device by name and place
        args = tuple(META if isinstance(value, str) else value for value in args)
    args, kwargs = placed(args, kwargs, None, META)
    return mapped(func(*args, **kwargs), on_meta)


def on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_meta else tensor.detach().to("meta")


def placed(args: Any, kwargs: Any, old: torch.device | None, new: torch.device) -> tuple[Any, Any]:
    """Devices among the arguments exchanged: all of them, or those equal to `old`."""

    def change(value: Any) -> Any:
        return new if isinstance(value, torch.device) and (old is None or value == old) else value

    args = tuple(change(value) for value in args)
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": change(torch.device(kwargs["device"]))}
    return args, kwargs


def needs_values(error: Exception) -> bool:
    """Whether a function has failed since tensors on meta have no values. Torch's sentences have the word in common."""
    return re.search(r"\bmeta\b|_meta\b", str(error), re.IGNORECASE) is not None
