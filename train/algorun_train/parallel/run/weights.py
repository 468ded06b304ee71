"""Parameters, buffers and state dict of this rank's stages, under the names that they have in the whole model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from .shared_weights import SharedWeight
from .stage import Stage


class StageWeights:
    """The weights of `stages`, by the stages' numbers. `shared` are the shared weights of the whole pipeline."""

    def __init__(self, stages: Mapping[int, Stage], shared: Sequence[SharedWeight]) -> None:
        self._stages, self._shared = stages, shared

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Each parameter of this rank once, under its name in the whole model."""
        seen = set()
        for stage in self._stages.values():
            for name, parameter in stage.module.named_parameters():
                if parameter not in seen:
                    seen.add(parameter)
                    yield name, parameter

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and all buffers of this rank, under all their names in the whole model."""
        modules = [stage.module for stage in self._stages.values()]
        found: dict[str, torch.Tensor] = {}
        for module in modules:
            found |= dict(module.named_buffers(remove_duplicate=False))
            found |= dict(module.named_parameters(remove_duplicate=False))
        return found

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers of this rank, under their names in the whole model."""
        return {name: tensor for stage in self._stages.values() for name, tensor in stage.module.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Loads this rank's weights from a whole model's state dict. Raises KeyError for a name that is missing in it."""
        for stage in self._stages.values():
            own = stage.module.state_dict()
            # Not strict: a BatchNorm of another stage puts its counter into a state dict without versions.
            stage.module.load_state_dict({name: state[name] for name in own}, strict=False)

    def saved_by_earlier_stage(self, index: int) -> set[str]:
        """Names in the state dict of stage `index` that need not be saved: an earlier stage has the same weight."""
        module = self._stages[index].module
        named = dict(module.named_parameters())
        not_owned = {named[each.name] for each in self._shared if index in each.stages[1:]}
        return {name for name, weight in module.named_parameters(remove_duplicate=False) if weight in not_owned}

    def take_buffers(self, other: StageWeights) -> None:
        """Replaces the buffers by those of the same stages of another pipeline: both then have the same tensors."""
        for index, stage in self._stages.items():
            theirs = dict(other._stages[index].module.named_buffers(remove_duplicate=False))
            for prefix, module in stage.module.named_modules():
                for name in module._buffers:
                    found = theirs.get(f"{prefix}.{name}".lstrip("."))
                    if found is not None:
                        module._buffers[name] = found
