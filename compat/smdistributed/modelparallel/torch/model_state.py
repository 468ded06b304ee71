"""Parameters, buffers and state of a DistributedModel: this rank's, and the whole model's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Self

import torch
from torch import nn

from algorun_train.errors import UserError
from smdistributed.script_types import Given, Result, StateDict

from .messages import CPU, gathered
from .parts import Part
from .session import session
from .staged_part import StagedPart
from .state_keys import PARTIAL
from .whole_part import WholePart


class ModelState(nn.Module):
    """What DistributedModel knows of its weights. The whole model's state is asked for on all ranks of a pipeline."""

    module: nn.Module
    _whole: WholePart | None = None
    _staged: StagedPart | None = None
    _trained = False
    _guarded = False
    _complete = False
    _names: tuple[str, ...]
    """of the whole state dict"""

    @property
    def staged(self) -> StagedPart | None:
        """This rank's stages, once the model is cut into several partitions."""
        return self._staged

    @property
    def whole(self) -> WholePart | None:
        """All of the model on this rank, with one partition."""
        return self._whole

    def local_named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of this rank, under their names in the whole model."""
        return ((prefix + name, parameter) for name, parameter in self._part().named_parameters())

    def local_parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return (parameter for _, parameter in self.local_named_parameters())

    def local_named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        return ((prefix + name, buffer) for name, buffer in self._part().named_buffers())

    def local_buffers(self, recurse: bool = True) -> Iterator[torch.Tensor]:
        return (buffer for _, buffer in self.local_named_buffers())

    def local_named_modules(
        self, memo: Given = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Modules of this rank: those with parameters or buffers that are not elsewhere, and what is in them."""
        own = {id(tensor) for _, tensor in (*self.local_named_parameters(), *self.local_named_buffers())}
        for root in self._part().roots:
            for name, module in root.named_modules():
                if any(id(tensor) in own for tensor in (*module.parameters(), *module.buffers())):
                    yield prefix + name, module

    def local_modules(self) -> Iterator[nn.Module]:
        return (module for _, module in self.local_named_modules())

    def local_state_dict(self, *args: Given, **kwargs: Given) -> StateDict:
        """This rank's part of the state dict; `_smp_is_partial` says whether there is more elsewhere."""
        return {**self._part().state_dict(), PARTIAL: self._staged is not None}

    def state_dict(self, *args: Given, **kwargs: Given) -> StateDict:  # type: ignore[override]
        """The whole model's state dict, under the names of `module`. On all ranks with the same dp_rank."""
        if self._staged is None:
            return dict(self.module.state_dict())
        mine = {name: tensor.detach().to("cpu") for name, tensor in self._staged.state_dict().items()}
        union = self._of_all(mine)
        return {name: union[name] for name in self._names}

    def load_state_dict(self, state_dict: Mapping[str, Given], strict: bool = True, assign: bool = False) -> Result:
        """Takes a whole state dict, or the parts of one, each rank its own.

        Where the model is not partitioned yet, the module is loaded as a whole, and cut afterwards.
        """
        state = dict(state_dict)
        if state.pop(PARTIAL, False):
            state = self._of_all(state)
        if self._staged is None:
            return self.module.load_state_dict(state, strict=strict, assign=assign)
        lacking = [name for name in self._staged.state_dict() if name not in state]
        unknown = [name for name in state if name not in self._names]
        if lacking or (strict and unknown):
            fault = f"without {', '.join(lacking[:3])}" if lacking else f"with {', '.join(unknown[:3])}"
            raise UserError(
                f"load_state_dict: a state dict {fault}; allowed: that of this model; fix: load the right one"
            )
        if not self._trained:  # the first training step may cut the module anew
            self.module.load_state_dict(state, strict=False)
        self._staged.pipeline.load_state_dict(state)
        return torch.nn.modules.module._IncompatibleKeys([], [])

    def cpu(self) -> Self:
        """The module with the weights of all ranks, on the CPU. On all ranks with the same dp_rank."""
        state = self.state_dict()
        self.module.to("cpu")
        self.module.load_state_dict(state)
        self._complete = True
        return self

    def _part(self) -> Part:
        part = self._whole or self._staged
        if part is None:
            raise UserError(
                "the model is not partitioned yet; allowed: after the first @smp.step call; "
                "fix: register_post_partition_hook, or ask later"
            )
        return part

    def _of_all(self, mine: StateDict) -> StateDict:
        """The union over the ranks of the pipeline."""
        here = session()
        try:
            rows = gathered(mine, here.axes.pp_group, CPU, "model.state_dict")
        except RuntimeError as error:  # Gloo's: a connection is closed
            raise UserError(
                f"a whole state dict: another rank of this pipeline has ended or failed while rank {here.comm.rank} asks "
                "for it; allowed: on all ranks with the same dp_rank; fix: call it on every rank and save on rank 0, or "
                "use model.local_state_dict()"
            ) from error
        return {name: value for row in rows for name, value in row.items()}

    def _guard(self) -> None:
        """From now on the module itself holds this rank's weights only; whoever saves it should know."""
        self._complete = False
        if self._guarded:
            return
        self._guarded = True

        def refuse(module: nn.Module, *_: Given) -> None:
            if not self._complete:
                raise UserError(
                    "model.module.state_dict(): the module holds the weights of this rank's stages only; "
                    "fix: model.state_dict() on all ranks with dp_rank 0, or model.local_state_dict()"
                )

        self.module.register_state_dict_pre_hook(refuse)
