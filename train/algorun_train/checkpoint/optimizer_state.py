"""An optimizer's state by parameter name, so that it can be loaded for any subset of a model's parameters."""

from collections.abc import Iterable

import torch

Named = Iterable[tuple[str, torch.nn.Parameter]]
NamedState = dict[str, dict[str, object]]  # {parameter: {"exp_avg": tensor, "step": tensor or number, ..}}


def named_state(optimizer: torch.optim.Optimizer, parameters: Named) -> NamedState:
    """The optimizer's state of these parameters. A parameter that no step has updated yet has none.

    Learning rate, weight decay and the like are left out: the options of the resumed job decide on them.
    """
    return {
        name: {key: value for key, value in optimizer.state[parameter].items() if value is not None}
        for name, parameter in parameters
        if parameter in optimizer.state
    }


def load_named_state(optimizer: torch.optim.Optimizer, parameters: Named, state: NamedState) -> None:
    """Loads a state that `named_state` returned. Tensors move to the devices and types of their parameters.

    A parameter that `state` does not name starts without state. Raises ValueError if a tensor has another shape than its
    parameter.
    """
    names = {id(parameter): name for name, parameter in parameters}
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    loaded: dict[int, dict[str, object]] = {}
    for index, parameter in enumerate(own):
        name = names.get(id(parameter))
        if name is None or name not in state:
            continue
        for key, value in state[name].items():
            if isinstance(value, torch.Tensor) and value.dim() and value.shape != parameter.shape:
                raise ValueError(f"{key} of {name} is {list(value.shape)}, {name} is {list(parameter.shape)}")
        loaded[index] = state[name]
    optimizer.load_state_dict(optimizer.state_dict() | {"state": loaded})
