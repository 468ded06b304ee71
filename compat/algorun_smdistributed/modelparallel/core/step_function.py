"""A decorated function, and its batch in microbatches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence, Set

import torch

from algorun_smdistributed.script_types import Given, Result
from algorun_train.common.errors import UserError
from algorun_train.parallel.model import trees

from .answers import Answer
from .script_model import ScriptModel


class StepFunction:
    """A function of one forward (and backward) pass. `non_split` and `axes` are smp.step's options."""

    def __init__(self, function: Callable[..., Result], non_split: Sequence[str], axes: Mapping[str, int]) -> None:
        self._function, self._signature = function, inspect.signature(function)
        self.name = getattr(function, "__qualname__", type(function).__name__)
        self.is_method = next(iter(self._signature.parameters), "") == "self"
        """whether its first argument is an object that it is called on"""
        self._non_split, self._axes = frozenset(non_split), dict(axes)
        known = set(self._signature.parameters)
        if unknown := (self._non_split | set(self._axes)) - known:
            raise UserError(
                f"@smp.step of {self.name}: {', '.join(sorted(unknown))} is none of its arguments; "
                f"allowed: {', '.join(sorted(known)) or 'none'}; fix: name an argument"
            )

    def arguments(self, args: tuple[Given, ...], kwargs: dict[str, Given]) -> dict[str, Given]:
        """The arguments of a call by name. TypeError for others than the function's."""
        return self._signature.bind(*args, **kwargs).arguments

    def split(self, arguments: Mapping[str, Given], count: int) -> list[dict[str, Given]]:
        """The arguments of each of `count` microbatches."""
        return split(arguments, count, self._non_split, self._axes)

    def run(self, placed: ScriptModel, answer: Answer, part: dict[str, Given]) -> Result:
        """What the function returns for one microbatch, while `answer` stands for the model."""
        bound = self._signature.bind_partial()
        bound.arguments.update(part)
        with placed.answered_by(answer):
            return self._function(*bound.args, **bound.kwargs)


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
            name: value if name in non_split else _Slice(name, count, index, axes.get(name, 0)).of(value)
            for name, value in arguments.items()
        }
        for index in range(count)
    ]


class _Slice:
    """Microbatch `index` of `count` of the argument `name`, along one axis."""

    def __init__(self, name: str, count: int, index: int, axis: int) -> None:
        self._name, self._count, self._index, self._axis = name, count, index, axis

    def of(self, value: Given) -> Result:
        if isinstance(value, torch.Tensor):
            return self._narrowed(value)
        if callable(getattr(value, "smp_slice", None)):
            return value.smp_slice(self._count, self._index, self._axis)
        if isinstance(value, (set, frozenset, list, tuple)):
            items = [self.of(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if type(value) is dict:
            return {key: self.of(item) for key, item in value.items()}
        # A library's own mapping (such as a tokenizer's result) keeps its class; other objects are nobody's to split.
        return trees.mapped(value, self._narrowed) if isinstance(value, Mapping) else value

    def _narrowed(self, tensor: torch.Tensor) -> torch.Tensor:
        axis, count = self._axis, self._count
        if tensor.dim() == 0:
            return tensor
        if not -tensor.dim() <= axis < tensor.dim():
            raise UserError(
                f"smp.step: argument {self._name!r} has a tensor of shape {tuple(tensor.shape)} without axis {axis}; "
                f"allowed: {-tensor.dim()} .. {tensor.dim() - 1}; fix: input_split_axes, or name it in non_split_inputs"
            )
        batch = tensor.shape[axis]
        if batch % count or batch == 0:
            raise UserError(
                f"smp.step: argument {self._name!r} has a batch of {batch} along axis {axis}; allowed: multiples of "
                f"microbatches = {count}; fix: drop_last=True in the DataLoader, another batch size or microbatches, or "
                "non_split_inputs"
            )
        return tensor.narrow(axis, self._index * (batch // count), batch // count)
