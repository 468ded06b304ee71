"""Which modules are gathered together: each layer alone, and the modules before and behind the layers each alone."""

from __future__ import annotations

from torch import nn

CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # without a forward of their own, so nothing would gather their weights


def layer_units(model: nn.Module) -> list[nn.Module]:
    """The modules of `model` to shard as units, in the order of its modules; what is left belongs to the model's own unit.

    Each layer of the longest list of layers is a unit, and so is each module beside the list or beside a module around
    it: the embedding, the norm and the head are three units. A norm and a head in one unit can get wrong gradients without
    an error: a unit that is called in part, as by an action of a pipeline that computes the head alone, stays whole and
    keeps old weights (tests/train/programs/norm_and_head.py). A module that shares a weight with another one, such as a
    head tied to its embedding, stays in the model's own unit.
    """
    name, layers = _longest_list(model)
    found = list(layers) if layers else _callable_children(model)
    while name:
        outer, _, last = name.rpartition(".")
        beside = [child for key, child in model.get_submodule(outer).named_children() if key != last]
        found += [module for child in beside for module in _callable(child)]
        name = outer
    users: dict[int, set[int]] = {}  # of each weight: the modules that have it as their own
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(id(parameter), set()).add(id(module))
    chosen = {id(module) for module in found if _has_weights_of_its_own(module, users)}
    return [module for module in model.modules() if id(module) in chosen]


def _has_weights_of_its_own(unit: nn.Module, users: dict[int, set[int]]) -> bool:
    inside = {id(module) for module in unit.modules()}
    weights = list(unit.parameters())
    return bool(weights) and all(users[id(weight)] <= inside for weight in weights)


def layer_list(model: nn.Module) -> list[nn.Module]:
    """The layers of the model's longest list: those that `--recompute` computes again. [] if it has no list."""
    return list(_longest_list(model)[1])


def _longest_list(model: nn.Module) -> tuple[str, list[nn.Module]]:
    """The list of modules with the most weights: its name and its members. ("", []) if the model has none."""
    found = [
        (sum(p.numel() for p in module.parameters()), name, list(module.children()))
        for name, module in model.named_modules()
        if name and isinstance(module, (nn.ModuleList, nn.Sequential))
    ]
    _, name, layers = max(found, key=lambda item: item[0], default=(0, "", []))
    return name, layers


def _callable_children(module: nn.Module) -> list[nn.Module]:
    return [each for child in module.children() for each in _callable(child)]


def _callable(module: nn.Module) -> list[nn.Module]:
    return _callable_children(module) if isinstance(module, CONTAINERS) else [module]
