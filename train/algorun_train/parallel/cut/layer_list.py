"""Cuts a model only between the layers of its longest list, as language models are usually split.

from algorun_train.parallel.cut.layer_list import cut_at_layers

model = GPT2LMHeadModel(config)
cutting = cut_at_layers(model, {"input_ids": ids, "use_cache": False})
first, second = cutting.stage(0, 6), cutting.stage(6, 12)
"""

from __future__ import annotations

from torch import nn

from algorun_train.common.errors import UserError

from .any_module import Cut, Search
from .module_copy import names


def cut_at_layers(model: nn.Module, example: object) -> Cut:
    """One segment per layer of the `nn.ModuleList` or `nn.Sequential` with the most parameters.

    Modules before the first layer (embeddings) belong to the first segment, modules after the last one (norm, head) to the
    last. Each segment that uses a shared weight, such as a head tied to the embedding, has it. `example` is as in `cut`.
    Raises UserError if the layers are not called once each and in order, or need more than their arguments.
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
    """Gives every use of a shared parameter, such as a head tied to the embedding, a parameter of its own.

    The new parameters begin with equal values and train separately from then on, so the model is another one. No cut does
    this by itself. Call it on every rank, before `pipeline`; ranks exchange nothing.

    Args:
        model: the whole model, which is changed in place.

    Returns:
        The names of the parameters that are new; [] for a model without shared parameters.
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
