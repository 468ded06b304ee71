"""Calls functions of torch with tensors that have shapes and types but no values (torch's device "meta").

`Any` on this page: functions that torch hands to a TorchFunctionMode, and their arguments, of any type.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from algorun_train.parallel.trees import mapped

META = torch.device("meta")
MOVES = (torch.Tensor.cpu, torch.Tensor.cuda)


def computed(func: Any, args: Any, kwargs: Any) -> Any:
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


def placed(args: Any, kwargs: Any, old: torch.device | None, new: torch.device) -> tuple[Any, Any]:
    """The arguments with every device that equals `old` replaced by `new`; `old` None: every device."""

    def change(value: Any) -> Any:
        return new if isinstance(value, torch.device) and (old is None or value == old) else value

    args = tuple(change(value) for value in args)
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": change(torch.device(kwargs["device"]))}
    return args, kwargs


def needs_values(error: Exception) -> bool:
    """Whether a function has failed because tensors on meta have no values. All such messages of torch contain the word."""
    return re.search(r"\bmeta\b|_meta\b", str(error), re.IGNORECASE) is not None
