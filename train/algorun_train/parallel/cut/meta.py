"""Calls functions of torch with tensors that have shapes and types but no values (torch's device "meta")."""

from __future__ import annotations

import re
from typing import Any, Protocol

import torch

from algorun_train.parallel.model.trees import Arguments, mapped

META = torch.device("meta")
MOVES = (torch.Tensor.cpu, torch.Tensor.cuda)


class TorchFunction(Protocol):
    """A function that torch hands to a TorchFunctionMode."""

    __name__: str

    def __call__(self, *args: object, **kwargs: object) -> object: ...


def computed(func: TorchFunction, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """The function's result for its tensors moved to meta. A move to another device leaves them on meta.

    Raises torch's own error if the result depends on values, see `needs_values`.
    """
    if func in MOVES:
        return args[0]
    args, kwargs = mapped((args, kwargs), on_meta)
    if func is torch.Tensor.to:  # the only one that takes a device by name and place
        args = tuple(META if isinstance(value, str) else value for value in args)
    args, kwargs = placed(args, kwargs, None, META)
    return mapped(func(*args, **kwargs), on_meta)


def on_meta(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor without values, detached."""
    return tensor if tensor.is_meta else tensor.detach().to("meta")


def placed(
    args: tuple[object, ...], kwargs: dict[str, object], old: torch.device | None, new: torch.device
) -> Arguments:
    """The arguments with every device that equals `old` replaced by `new`; `old` None: every device."""

    def change(value: object) -> object:
        return new if isinstance(value, torch.device) and (old is None or value == old) else value

    args = tuple(change(value) for value in args)
    device: Any = kwargs.get("device")  # Any: a device, a name or a number, as torch.device takes them
    if device is not None:
        kwargs = {**kwargs, "device": change(torch.device(device))}
    return args, kwargs


def needs_values(error: Exception) -> bool:
    """Whether a function has failed because tensors on meta have no values. All such messages of torch contain the word."""
    return re.search(r"\bmeta\b|_meta\b", str(error), re.IGNORECASE) is not None
