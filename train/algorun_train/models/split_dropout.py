"""Dropout between the layers of a tensor group: each rank has other heads there, and has to drop others.

The ranks of a group draw the same random numbers (`seed_step`), because what all of them hold must stay equal. Between a module
whose output is split by columns and one that takes its input in parts, a rank has activations of its own. There it draws numbers of
its own; afterwards it goes on with the common ones. Megatron-LM keeps a second state of the generator for this (arXiv:1909.08053,
appendix B.2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from algorun_train.ranks.generators import generators

BEGINS, ENDS = "colwise", "rowwise"
DROPS = re.compile("drop")  # in the names of a config's values


def drops(config: Any) -> bool:
    """Whether a model with this config drops activations. Any: transformers has no types for it."""
    values = config.to_dict()
    return any(DROPS.search(key) and isinstance(value, float) and value > 0 for key, value in values.items())


def install(modules: Mapping[str, nn.Module], styles: Mapping[str, str], rank: int) -> None:
    """Lets this rank draw its own numbers between the split layers of a module. `rank`: its place in the tensor group. `styles`:
    those of transformers' plan, by the names of `modules`."""
    inside: dict[str, set[str]] = {}
    for name in modules:
        inside.setdefault(name.rpartition(".")[0], set()).add(styles.get(name, ""))
    for parent in [parent for parent, found in inside.items() if {BEGINS, ENDS} <= found]:
        numbers = _Numbers(rank)
        modules[parent].register_forward_pre_hook(numbers.enter)
        for name in modules:
            if name.rpartition(".")[0] == parent and styles.get(name) == BEGINS:
                modules[name].register_forward_hook(numbers.begin)
            elif name.rpartition(".")[0] == parent and styles.get(name) == ENDS:
                modules[name].register_forward_pre_hook(numbers.end)


class _Numbers:
    """The common state of the generator, while one module draws this rank's own numbers."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._common: tuple[torch.Generator, torch.Tensor] | None = None

    def enter(self, *_: object) -> None:
        """The module begins, with common numbers. A recomputation that ended within the module has restored the generator itself."""
        self._common = None

    def begin(self, module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        """What follows is this rank's own."""
        if self._common is not None or not module.training:
            return
        number = int(torch.randint(2**62, ()))  # the CPU's: a GPU's would have to be waited for. The same on all ranks
        generator = generators(output.device)[-1]
        self._common = generator, generator.get_state()
        generator.manual_seed((number * 65_537 + self._rank + 1) % 2**63)

    def end(self, *_: object) -> None:
        """What follows is all ranks' again."""
        if self._common is not None:
            generator, state = self._common
            generator.set_state(state)
            self._common = None
