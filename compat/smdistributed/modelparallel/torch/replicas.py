"""Data parallelism of the script's model: equal weights at the start, gradients averaged once per step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist


def equalise(tensors: Iterable[torch.Tensor], group: Any, source: int = 0) -> None:
    """Gives all replicas the values of one, by its rank in the group."""
    if group is not None:
        for tensor in tensors:
            dist.broadcast(tensor.data, group=group, group_src=source)


class Turns:
    """Counts steps: gradients are averaged at the end of every n-th."""

    def __init__(self, every: int) -> None:
        self._every, self._steps = every, 0

    def now(self) -> bool:
        self._steps += 1
        return self._steps % self._every == 0
