"""What the microbatches of a step return, as one."""

from __future__ import annotations

from typing import NoReturn

import torch

from algorun_smdistributed.modelparallel.core.refused import refuse
from algorun_smdistributed.script_types import Given, Result
from algorun_train.common.errors import UserError
from algorun_train.parallel.model import trees


class StepOutput:
    """A tensor that every microbatch has computed."""

    def __init__(self, outputs: list[torch.Tensor]) -> None:
        self._outputs = outputs

    @property
    def outputs(self) -> list[torch.Tensor]:
        """The tensors, by microbatch."""
        return self._outputs

    def reduce_mean(self) -> torch.Tensor:
        """Their mean, of the same shape; a floating-point tensor for whole numbers."""
        return self.reduce_sum() / len(self._outputs)

    def reduce_sum(self) -> torch.Tensor:
        """Their sum, of the same shape."""
        return self.stack().sum(dim=0)

    def concat(self) -> torch.Tensor:
        """All after one another along axis 0. UserError for tensors without dimensions."""
        if self._outputs[0].dim() == 0:
            raise UserError(
                "StepOutput.concat: the tensors have no batch dimension; allowed: one or more; fix: stack(), or "
                "reduce_mean() for a loss"
            )
        return torch.cat(self._outputs)

    def stack(self) -> torch.Tensor:
        """All under one another, with the microbatch as axis 0."""
        return torch.stack(self._outputs)

    def __getattr__(self, name: str) -> NoReturn:
        refuse(name, "StepOutput")

    def __repr__(self) -> str:
        return f"StepOutput({self._outputs!r})"


def joined(results: list[Given], detach: bool) -> Result:
    """What the microbatches have returned, as one: every tensor a StepOutput, other values a list by microbatch.

    None stays None. Raises UserError where one has returned more tensors than another.
    `detach`: the tensors leave the graph.
    """
    if len({len(trees.leaves(result)) for result in results}) > 1:
        counts = ", ".join(str(len(trees.leaves(result))) for result in results)
        raise UserError(
            f"smp.step: the microbatches return different numbers of tensors ({counts}); allowed: equal ones; "
            "fix: return the same tensors each time"
        )

    def join(values: list[Given]) -> Result:
        if all(isinstance(value, torch.Tensor) for value in values):
            return StepOutput([value.detach() if detach else value for value in values])
        return None if all(value is None for value in values) else values

    return trees.zipped(results, join)
