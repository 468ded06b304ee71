"""A batch in microbatches, and what the microbatches return as one."""

from __future__ import annotations

from collections.abc import Mapping, Set

import torch

from algorun_train.errors import UserError
from algorun_train.parallel import trees
from smdistributed.script_types import Given, Result

from .refused import Refusing


def split(
    arguments: Mapping[str, Given], count: int, non_split: Set[str], axes: Mapping[str, int]
) -> list[dict[str, Given]]:
    """The named `arguments` of each of `count` microbatches.

    Tensors are narrowed along their batch axis, `axes[name]` or 0, also inside lists, tuples, dictionaries and sets;
    objects with a method `smp_slice(num_mb, mb, axis)` slice themselves. Whatever else there is, tensors without
    dimensions and the names in `non_split` come to every microbatch as they are. Raises UserError for a batch that does
    not divide, or a tensor without such an axis.
    """
    return [
        {
            name: value if name in non_split else _sliced(value, name, count, index, axes.get(name, 0))
            for name, value in arguments.items()
        }
        for index in range(count)
    ]


def _sliced(value: Given, name: str, count: int, index: int, axis: int) -> Result:
    def narrow(tensor: torch.Tensor) -> torch.Tensor:
        return _narrowed(tensor, name, count, index, axis)

    def rest(item: Given) -> Result:
        return _sliced(item, name, count, index, axis)

    if isinstance(value, torch.Tensor):
        return narrow(value)
    if callable(getattr(value, "smp_slice", None)):
        return value.smp_slice(count, index, axis)
    if isinstance(value, (set, frozenset)):
        return type(value)(rest(item) for item in value)
    if isinstance(value, (list, tuple)):
        items = [rest(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if type(value) is dict:
        return {key: rest(item) for key, item in value.items()}
    # A library's own mapping (such as a tokenizer's result) keeps its class; other objects are nobody's to split.
    return trees.mapped(value, narrow) if isinstance(value, Mapping) else value


def _narrowed(tensor: torch.Tensor, name: str, count: int, index: int, axis: int) -> torch.Tensor:
    if tensor.dim() == 0:
        return tensor
    if not -tensor.dim() <= axis < tensor.dim():
        raise UserError(
            f"smp.step: argument {name!r} has a tensor of shape {tuple(tensor.shape)} without axis {axis}; "
            f"allowed: {-tensor.dim()} .. {tensor.dim() - 1}; fix: input_split_axes, or name it in non_split_inputs"
        )
    batch = tensor.shape[axis]
    if batch % count or batch == 0:
        raise UserError(
            f"smp.step: argument {name!r} has a batch of {batch} along axis {axis}; allowed: multiples of microbatches "
            f"= {count}; fix: drop_last=True in the DataLoader, another batch size or microbatches, or non_split_inputs"
        )
    return tensor.narrow(axis, index * (batch // count), batch // count)


class StepOutput(Refusing):
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
