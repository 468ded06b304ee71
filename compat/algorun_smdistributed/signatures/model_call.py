"""A call of the model, and its signature: everything about it but the data."""

from __future__ import annotations

import inspect
import io
import pickle
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.parallel.model import trees
from algorun_train.parallel.model.segments import TensorSpec

TENSOR: Any = torch.Tensor  # stands for a tensor in a signature, so types take it for one
LONGEST = 100  # characters of an argument in a message


@dataclass(frozen=True, slots=True)
class ModelCall:
    """The arguments of a call, and the autocast that it is made under (None: without)."""

    args: tuple[object, ...]
    kwargs: dict[str, object]
    autocast: torch.dtype | None = None

    def example(self, model: nn.Module) -> object:
        """The arguments as a cut takes them: a tuple, or a dictionary of named ones.

        Raises UserError for arguments that do not fit the model's forward.
        """
        if not self.kwargs:
            return self.args
        bound = self._bound(model)
        kinds = {parameter.name: parameter.kind for parameter in inspect.signature(model.forward).parameters.values()}
        named: dict[str, object] = {}
        for name, value in bound.arguments.items():
            if kinds[name] is inspect.Parameter.VAR_KEYWORD:
                named |= value
            elif kinds[name] in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
                raise UserError(
                    f"the model is called with keyword arguments beside the positional {name}, which has no name; "
                    "allowed: arguments with names; fix: name them in the model's forward"
                )
            else:
                named[name] = value
        return named

    def _bound(self, model: nn.Module) -> inspect.BoundArguments:
        """The arguments by the names that the model's forward has for them."""
        try:
            return inspect.signature(model.forward).bind(*self.args, **self.kwargs)
        except TypeError as error:
            raise UserError(f"the model's arguments do not fit its forward: {error}") from None

    def copied(self) -> ModelCall:
        """The same call with tensors of its own, without gradients: a model may change its arguments in place."""
        args, kwargs = trees.mapped((self.args, self.kwargs), lambda tensor: tensor.detach().clone())
        return ModelCall(args, kwargs, self.autocast)

    def on_cpu(self) -> ModelCall:
        """The same call with its tensors on the CPU, without gradients."""
        args, kwargs = trees.mapped((self.args, self.kwargs), lambda tensor: tensor.detach().to("cpu"))
        return ModelCall(args, kwargs, self.autocast)

    def tensors(self, model: nn.Module) -> list[torch.Tensor]:
        """The tensors among the arguments, in the order in which the first stage gets them."""
        return trees.leaves(trees.arguments(self.example(model)))

    def samples(self, model: nn.Module) -> int:
        """The size of the batch: that of the first tensor with an axis for it; 0 if there is none."""
        return next((tensor.shape[0] for tensor in self.tensors(model) if tensor.dim()), 0)

    def signature(self, model: nn.Module) -> Signature:
        """What stages for this call are made for."""
        try:
            bound = self._bound(model)
            bound.apply_defaults()  # an argument with its default is the same call as without it
            arguments = dict(bound.arguments)
        except ValueError:  # a forward that does not tell its signature
            arguments = {f"argument {number}": value for number, value in enumerate(self.args)} | self.kwargs
        names = [name for name, value in arguments.items() for _ in trees.leaves(value)]
        specs = [TensorSpec.of(tensor) for tensor in trees.leaves(arguments)]
        others = {name: content_of(trees.mapped(value, lambda _: TENSOR)) for name, value in arguments.items()}
        return Signature(tuple(specs), tuple(names), others, self.autocast)


@dataclass(frozen=True, slots=True)
class Content:
    """What an argument holds when it is given: its object may be changed later, and other ranks have a copy of it."""

    data: bytes
    text: str = field(compare=False)


def content_of(value: object) -> object:
    """The value itself if nothing can change it, or if pickle does not take it; else its content."""
    if type(value) in trees.SINGLE or value is TENSOR:
        return value
    file = io.BytesIO()
    pickler = _ByContent(file, pickle.HIGHEST_PROTOCOL)
    pickler.fast = True  # without memory: equal parts give equal bytes, whether they are one object or two
    try:
        pickler.dump(value)
        return Content(file.getvalue(), repr(value))
    except Exception:  # pickle raises whatever an object's own code does
        return value


class _ByContent(pickle.Pickler):
    def persistent_id(self, value: object) -> int | None:
        """Modules and tensors within an object count as themselves: their values are data."""
        return id(value) if isinstance(value, (nn.Module, torch.Tensor)) else None


@dataclass(frozen=True, slots=True)
class Signature:
    """A call without its data. Signatures are equal whatever the autocast."""

    tensors: tuple[TensorSpec, ...]
    names: tuple[str, ...]
    """the argument that each tensor lies in"""
    others: dict[str, object]
    """all arguments by name, as `content_of` gives them, with TENSOR in the place of each tensor"""
    autocast: torch.dtype | None = field(compare=False)

    def difference(self, other: Signature) -> tuple[str, str, str]:
        """The first difference from `other`: as it is here, as it is there, and what to do about it."""
        for name in [*self.others, *other.others]:
            mine, its = (each.others.get(name, inspect.Parameter.empty) for each in (self, other))
            if mine != its:
                same = "the same arguments in every step, or a tensor for what changes"
                return f"{name}={_plain(mine)}", f"{name}={_plain(its)}", same
        for name, own, theirs in zip(self.names, self.tensors, other.tensors, strict=True):
            if own != theirs:
                return f"{name}={_shown(own)}", f"{name}={_shown(theirs)}", _fix(name, own, theirs)
        if self.autocast != other.autocast:
            mine, its = (f"autocast to {name_of(each.autocast) or 'nothing'}" for each in (self, other))
            return mine, its, "enter torch.autocast in every training step, or in none"
        raise ValueError("two equal signatures")

    def rows_of(self, made_for: Signature) -> tuple[int, int] | None:
        """The batch sizes of this signature and of `made_for`, if these differ alone; None if more differs."""
        if self.others != made_for.others or len(self.tensors) != len(made_for.tensors):
            return None
        sizes = set()
        for mine, theirs in zip(self.tensors, made_for.tensors, strict=True):
            if mine == theirs:
                continue
            if mine.dtype != theirs.dtype or not mine.shape or mine.shape[1:] != theirs.shape[1:]:
                return None
            sizes.add((mine.shape[0], theirs.shape[0]))
        return sizes.pop() if len(sizes) == 1 else None


def _fix(name: str, mine: TensorSpec, theirs: TensorSpec) -> str:
    if mine.dtype != theirs.dtype:
        return f"convert {name} to one type"
    return "equal batch sizes" if mine.shape[1:] == theirs.shape[1:] else "pad all batches to one length"


def _shown(spec: TensorSpec) -> str:
    return f"{list(spec.shape)} {name_of(spec.dtype)}"


def _plain(value: object) -> str:
    text = (value.text if isinstance(value, Content) else repr(value)).replace(repr(TENSOR), "tensor")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}.."


def name_of(dtype: torch.dtype | None) -> str:
    """A type's name without "torch.", "" for None."""
    return str(dtype).removeprefix("torch.") if dtype else ""
