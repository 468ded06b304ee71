"""A device named cuda where there is none: shapes without values, and a list of what comes from the host.

Its tensors are torch's meta tensors. Whatever reads one of their values back (`item`, `tolist`, `bool`, `nonzero`, a mask
as an index, `.cpu()`) fails, and on a GPU each of these waits for all work that is queued there; only
`.to("cpu", non_blocking=True)` does not. What copies from the host to the device is listed with how it is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CUDA = torch.device("cuda", 0)
META = torch.device("meta")
DEVICE_OF = torch.Tensor.device.__get__  # type: ignore[attr-defined]
FROM_VALUES = (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor)


@dataclass(frozen=True)
class Copy:
    """One copy from the host: the device's queue is not waited for where it is pinned and non_blocking."""

    bytes: int
    pinned: bool
    non_blocking: bool


class PretendedGpu(TorchFunctionMode):
    """While it is entered, `torch.device("cuda")` is the meta device. Autograd and optimizers see that as well."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[Copy] = []
        self.values: float = 0
        """of what comes to the host without being waited for"""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.to and args[0].is_meta and args[1:] == ("cpu",) and kwargs.get("non_blocking"):
            return torch.full(args[0].shape, self.values, dtype=args[0].dtype)
        args = tuple(META if _is_cuda(value) else value for value in args)
        kwargs = {name: META if _is_cuda(value) else value for name, value in kwargs.items()}
        pinned = bool(kwargs.pop("pin_memory", False))
        result = func(*args, **kwargs)
        if func == DEVICE_OF:
            return CUDA if result == META else result
        if pinned:
            result.is_in_pinned_memory = True
        if _on_device(result) and func in FROM_VALUES:
            self.copies.append(Copy(result.nbytes, False, False))
        elif _on_device(result) and func in (torch.Tensor.to, torch.Tensor.copy_):
            source = args[1] if func is torch.Tensor.copy_ else args[0]
            if source.device.type == "cpu":
                here = getattr(source, "is_in_pinned_memory", False)
                self.copies.append(Copy(source.nbytes, here, kwargs.get("non_blocking", False)))
        return result


def _is_cuda(value: Any) -> bool:
    return isinstance(value, torch.device) and value.type == "cuda"


def _on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_meta
