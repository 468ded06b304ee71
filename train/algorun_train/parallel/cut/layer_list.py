"""Cuts a model at its list of layers and nowhere else, as language models are usually split.

from algorun_train.parallel.cut.layer_list import layers

model = GPT2LMHeadModel(config)
cutting = layers(model, {"input_ids": ids, "use_cache": False})
first, second = cutting.stage(0, 6), cutting.stage(6, 12)
"""

from typing import Any

from torch import nn

from algorun_train.errors import UserError

from .any_module import Cut, Search
from .twin import names


def layers(model: nn.Module, example: Any) -> Cut:
    """One segment per layer of the `nn.ModuleList` or `nn.Sequential` that holds most parameters.

    What runs before the first layer (embeddings) belongs to the first segment, what runs after the last one (norm,
    head) to the last. `example` is as in `cut`. Raises UserError where the list's layers are not called once each, one
    after the other, with all that they need. Weights that are shared across layers, such as a head tied to the
    embeddings, are in each segment that uses them.
    """
    name, stack = _longest(model)
    search = Search(model, example)
    calls = search.calls()
    members = [f"{name}.{number}".lstrip(".") for number, _ in enumerate(stack)]  # the model may be the list
    missing = [member for member in members if member not in calls]
    if missing:
        raise UserError(
            f"layer {missing[0]} of {type(model).__name__} is not called exactly once; allowed: a list whose layers the "
            "forward calls one after the other; fix: cut the model with cut() instead"
        )
    units = sorted((calls[member] for member in members), key=lambda call: call.begin)
    places = search.places(units)
    if search.refused:
        member, reason = next(iter(search.refused.items()))
        raise UserError(
            f"model {type(model).__name__} cannot be cut at layer {member}: {reason}; allowed: layers that get all they "
            "need as arguments, computed from constants, the model's inputs and the layer before; fix: compute what else it "
            "depends on within a layer, or cut the model with cut()"
        )
    return search.cutting(places)


def untie(model: nn.Module) -> list[str]:
    """Gives every name of a shared parameter a parameter of its own with equal values; returns the names that changed.

    The copies train apart from then on, so the model is another one: that is why no cut does this by itself.
    """
    known, changed = names(model), []
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in parameters.items():
        if name != known[id(parameter)][0]:
            holder, _, last = name.rpartition(".")
            copied = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
            setattr(model.get_submodule(holder), last, copied)
            changed.append(name)
    return changed


def _longest(model: nn.Module) -> tuple[str, nn.ModuleList | nn.Sequential]:
    found = [
        (sum(p.numel() for p in module.parameters()), name, module)
        for name, module in model.named_modules()
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) > 1
    ]
    if not found:
        raise UserError(
            f"model {type(model).__name__} has no list of layers; allowed: an nn.ModuleList or nn.Sequential of at least "
            "two; fix: cut the model with cut() instead"
        )
    _, name, stack = max(found, key=lambda item: item[0])
    return name, stack
