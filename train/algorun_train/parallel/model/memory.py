"""Memory for the weights of modules that were built without (torch's meta device)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator

import torch
from torch import nn


def give_memory(modules: Iterable[nn.Module], device: torch.device) -> dict[nn.Parameter, nn.Parameter]:
    """Replaces parameters on the meta device by new ones on `device`, whose values are undefined. Returns {old: new}.

    A parameter with several names, also in several of the modules, stays one parameter.
    """
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in modules:
        for part in module.modules():
            for name, old in part._parameters.items():
                if old is not None and old.is_meta:
                    if old not in made:
                        made[old] = nn.Parameter(torch.empty_like(old, device=device), old.requires_grad)
                    part._parameters[name] = made[old]
    return made


@contextlib.contextmanager
def with_values(module: nn.Module, device: torch.device) -> Iterator[None]:
    """As `give_memory`, until the block ends. The values keep activations at their size: a pass takes as long as with real
    ones."""
    made = give_memory([module], device)
    with torch.no_grad():
        for new in made.values():
            bound = math.sqrt(3 / max(1, new.numel() // len(new))) if new.dim() > 1 else 0.0
            new.uniform_(-bound, bound) if bound else new.fill_(1)
    try:
        yield
    finally:
        olds = {new: old for old, new in made.items()}
        for part in module.modules():
            part._parameters.update({name: olds[new] for name, new in part._parameters.items() if new in olds})
