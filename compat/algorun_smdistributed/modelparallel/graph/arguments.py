"""The arguments of a step function, and its batch in microbatches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from algorun_smdistributed.script_types import Given, Result
from algorun_train.common.errors import UserError

Tensor = Any  # TensorFlow's objects have no types for mypy
PLAIN = (bool, int, float, str, bytes, type(None))


class KerasStepFunction:
    """A decorated function. `non_split`, `axes` and `input_signature` are smp.step's options."""

    def __init__(
        self,
        function: Callable[..., Result],
        non_split: Sequence[str],
        axes: Mapping[str, int],
        input_signature: Sequence[tf.TensorSpec] | None,
    ) -> None:
        self.function, self._signature = function, inspect.signature(function)
        self.name = str(getattr(function, "__qualname__", type(function).__name__))
        self._non_split, self._axes, self._specs = frozenset(non_split), dict(axes), input_signature
        known = set(self._signature.parameters)
        if unknown := (self._non_split | set(self._axes)) - known:
            raise UserError(
                f"@smp.step of {self.name}: {', '.join(sorted(unknown))} is none of its arguments; "
                f"allowed: {', '.join(sorted(known)) or 'none'}; fix: name an argument"
            )

    def call(self, args: tuple[Given, ...], kwargs: dict[str, Given], microbatches: int) -> StepCall:
        """One call, its tensors apart. Raises TypeError for other arguments than the function's, UserError for a batch that
        does not divide, or that `input_signature` does not allow."""
        bound = self._signature.bind(*args, **kwargs)
        names = list(bound.arguments)
        leaves = [tf.nest.flatten(bound.arguments[name], expand_composites=True) for name in names]
        tensors, splits, rest = list[Tensor](), list[int | None](), list[Given]()
        for name, found in zip(names, leaves, strict=True):
            for leaf in found:
                if isinstance(leaf, (tf.Tensor, np.ndarray, np.generic, tf.Variable)):
                    tensor = tf.convert_to_tensor(leaf)
                    tensors.append(tensor)
                    splits.append(self._split(name, tensor, microbatches))
                    rest.append(Slot)
                else:
                    rest.append(leaf)
        self._check(tensors)

        def rebuilt(given: Sequence[Tensor]) -> tuple[Given, Given]:
            left = iter(given)
            filled = iter([next(left) if leaf is Slot else leaf for leaf in rest])
            for name, found in zip(names, leaves, strict=True):
                bound.arguments[name] = tf.nest.pack_sequence_as(
                    bound.arguments[name], [next(filled) for _ in found], expand_composites=True
                )
            return bound.args, bound.kwargs

        return StepCall(self.name, tuple(tensors), tuple(splits), tuple(rest), rebuilt, microbatches)

    def _split(self, name: str, tensor: Tensor, count: int) -> int | None:
        """The axis along which an argument is split; None: every microbatch gets it as it is."""
        rank = tensor.shape.rank
        if name in self._non_split or rank == 0:
            return None
        axis = self._axes.get(name, 0)
        if rank is None or not -rank <= axis < rank:
            raise UserError(
                f"smp.step: argument {name!r} has a tensor of shape {tensor.shape} without axis {axis}; allowed: axes that it "
                "has; fix: input_split_axes, or name it in non_split_inputs"
            )
        batch = tensor.shape[axis]
        if batch is None or batch % count or batch == 0:
            raise UserError(
                f"smp.step: argument {name!r} has a batch of {'unknown size' if batch is None else batch} along axis {axis}; "
                f"allowed: multiples of microbatches = {count}; fix: drop_remainder=True in .batch(..), another batch size or "
                "microbatches, or non_split_inputs"
            )
        return axis

    def _check(self, tensors: Sequence[Tensor]) -> None:
        if self._specs is None:
            return
        specs = tf.nest.flatten(self._specs)
        if len(specs) != len(tensors) or not all(
            spec.dtype == tensor.dtype and spec.shape.is_compatible_with(tensor.shape)
            for spec, tensor in zip(specs, tensors, strict=False)
        ):
            given = ", ".join(f"{tensor.dtype.name}{tensor.shape}" for tensor in tensors)
            allowed = ", ".join(f"{spec.dtype.name}{spec.shape}" for spec in specs)
            raise UserError(
                f"@smp.step of {self.name}: called with {given}; allowed: {allowed}, its input_signature; fix: change one of the two"
            )


class Slot:
    """Stands for a tensor among the arguments."""


@dataclass(frozen=True, slots=True)
class StepCall:
    """One call of a step function."""

    name: str
    tensors: tuple[Tensor, ...]
    splits: tuple[int | None, ...]
    rest: tuple[Given, ...]
    rebuilt: Callable[[Sequence[Tensor]], tuple[Given, Given]]
    """the function's arguments with other tensors: of a microbatch, or symbolic"""
    microbatches: int

    @property
    def key(self) -> tuple[Given, ...]:
        """Calls with equal keys have the same graph."""
        shapes = tuple((tensor.dtype, tuple(tensor.shape)) for tensor in self.tensors)
        rest = tuple(leaf if isinstance(leaf, PLAIN) else id(leaf) for leaf in self.rest)
        return (shapes, self.splits, rest)

    @property
    def text(self) -> str:
        """The call for an error, and for comparing ranks: shapes and types."""
        tensors = iter(self.tensors)

        def shown(leaf: Given) -> str:
            if leaf is Slot:
                tensor = next(tensors)
                return f"{tensor.dtype.name}{list(tensor.shape)}"
            return repr(leaf) if isinstance(leaf, PLAIN) else type(leaf).__name__

        return f"{self.name}({', '.join(map(shown, self.rest))})"

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """The tensors of one microbatch."""
        specs = []
        for tensor, axis in zip(self.tensors, self.splits, strict=True):
            shape = list(tensor.shape)
            if axis is not None:
                shape[axis] //= self.microbatches
            specs.append(tf.TensorSpec(shape, tensor.dtype))
        return specs

    def split(self) -> list[list[Tensor]]:
        """The tensors of each microbatch."""
        parts = [
            [tensor] * self.microbatches if axis is None else tf.split(tensor, self.microbatches, axis)
            for tensor, axis in zip(self.tensors, self.splits, strict=True)
        ]
        return [[part[number] for part in parts] for number in range(self.microbatches)]
