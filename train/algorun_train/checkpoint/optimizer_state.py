"""An optimizer's state by the names of parameters, so that it fits whatever part of a model an optimizer is for."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

Named = Iterable[tuple[str, torch.nn.Parameter]]
NamedState = dict[str, dict[str, Any]]  # {parameter: {"exp_avg": tensor, "step": tensor or number, ..}}


def named_state(optimizer: torch.optim.Optimizer, parameters: Named) -> NamedState:
    """What the optimizer remembers of these parameters; nothing of those that it has not moved yet.

    Learning rates and the like are not in it: they come from the options, and the rate from the position.
    """
    return {
        name: {key: value for key, value in optimizer.state[parameter].items() if value is not None}
        for name, parameter in parameters
        if parameter in optimizer.state
    }


def load_named_state(optimizer: torch.optim.Optimizer, parameters: Named, state: Mapping[str, dict[str, Any]]) -> None:
    """The other way round. ValueError for state of another shape than its parameter's.

    Parameters that `state` does not name begin anew. Devices and types become those of the parameters.
    """
    names = {id(parameter): name for name, parameter in parameters}
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    loaded: dict[int, dict[str, Any]] = {}
    for index, parameter in enumerate(own):
        name = names.get(id(parameter))
        if name not in state:
            continue
        for key, value in state[name].items():
            if isinstance(value, torch.Tensor) and value.dim() and value.shape != parameter.shape:
                raise ValueError(f"{key} of {name} is {list(value.shape)}, {name} is {list(parameter.shape)}")
        loaded[index] = state[name]
    optimizer.load_state_dict(optimizer.state_dict() | {"state": loaded})
