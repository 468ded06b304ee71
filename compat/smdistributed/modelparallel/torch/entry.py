"""What the model gets of one microbatch."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field

import torch
from torch import nn

from algorun_train.errors import UserError
from algorun_train.parallel import segments, trees
from algorun_train.parallel.cut import module_copy
from algorun_train.ranks import generators
from smdistributed.script_types import Given, Result

from .session import session

TENSOR = torch.Tensor  # stands for one in an entry without its data
LONGEST = 100  # characters of an argument in a message


@dataclass(frozen=True, slots=True)
class Entry:
    """A model call's arguments, and the autocast that it is made under (None without)."""

    args: tuple[Given, ...]
    kwargs: dict[str, Given]
    autocast: torch.dtype | None = None

    def example(self, model: nn.Module) -> Result:
        """The arguments as `cut` wants them: a tuple, or a dictionary of named ones."""
        if not self.kwargs:
            return self.args
        bound = self._bound(model)
        kinds = {parameter.name: parameter.kind for parameter in inspect.signature(model.forward).parameters.values()}
        named: dict[str, Given] = {}
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

    def on_cpu(self) -> Entry:
        """The same with its tensors on the CPU, without gradients."""
        args, kwargs = trees.mapped((self.args, self.kwargs), lambda tensor: tensor.detach().to("cpu"))
        return Entry(args, kwargs, self.autocast)

    def tensors(self, model: nn.Module) -> list[torch.Tensor]:
        """The tensors among the arguments, in the order in which the first stage wants them."""
        return trees.leaves(trees.arguments(self.example(model)))

    def samples(self, model: nn.Module) -> int:
        """The size of the batch, by the first tensor that has an axis for it; 0 without one."""
        return next((tensor.shape[0] for tensor in self.tensors(model) if tensor.dim()), 0)

    def form(self, model: nn.Module) -> Form:
        try:
            bound = self._bound(model)
            bound.apply_defaults()  # one that is given its default is no other call
            arguments = dict(bound.arguments)
        except ValueError:  # a forward that does not tell its signature
            arguments = {f"argument {number}": value for number, value in enumerate(self.args)} | self.kwargs
        names = [name for name, value in arguments.items() for _ in trees.leaves(value)]
        specs = [segments.TensorSpec.of(tensor) for tensor in trees.leaves(arguments)]
        others = trees.mapped(arguments, lambda _: TENSOR)
        return Form(tuple(specs), tuple(names), others, self.autocast)


@dataclass(frozen=True, slots=True)
class Form:
    """An entry without its data: stages are made for one. Equal whatever the autocast."""

    tensors: tuple[Given, ...]
    names: tuple[str, ...]
    """the argument that each tensor lies in"""
    others: dict[str, Given]
    """all arguments by name, with TENSOR in the place of each tensor"""
    autocast: torch.dtype | None = field(compare=False)

    def __str__(self) -> str:
        return ", ".join(map(_shown, self.tensors))

    def difference(self, other: Form) -> tuple[str, str, str]:
        """What is another one in `other`: as it is here, as it is there, and what to do about it."""
        for name in [*self.others, *other.others]:
            mine, its = (form.others.get(name, inspect.Parameter.empty) for form in (self, other))
            if mine != its:
                return (
                    f"{name}={_plain(mine)}",
                    f"{name}={_plain(its)}",
                    "call it with the same arguments in every step",
                )
        for name, mine, its in zip(self.names, self.tensors, other.tensors, strict=True):
            if mine == its:
                continue
            if mine.dtype != its.dtype:
                fix = f"convert {name} to one type"
            elif mine.shape[1:] == its.shape[1:]:
                fix = "equal batch sizes"
            else:
                fix = "pad all batches to one length"
            return f"{name}={_shown(mine)}", f"{name}={_shown(its)}", fix
        if self.autocast != other.autocast:
            mine, its = (f"autocast to {name_of(form.autocast) or 'nothing'}" for form in (self, other))
            return mine, its, "enter torch.autocast in every training step, or in none"
        raise ValueError("two equal forms")

    def rows_of(self, made_for: Form) -> tuple[int, int] | None:
        """The batch size of this form and the other one's, where they differ in that alone; None where in more."""
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


def _shown(spec: Given) -> str:
    return f"{list(spec.shape)} {name_of(spec.dtype)}"


def _plain(value: Given) -> str:
    text = repr(value).replace(repr(TENSOR), "tensor")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}.."


def name_of(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.") if dtype else ""


def samples_stand_alone(model: nn.Module, entry: Entry, is_training: bool) -> bool:
    """Whether every output has a row per sample, which depends on that sample alone: tried with another last sample,
    where there are others beside it.

    BatchNorm in training, comparisons between samples and means over the batch show in the other rows.
    """
    args, kwargs = trees.arguments(entry.example(model))
    batch = entry.samples(model)
    rows = torch.arange(batch).clamp(max=max(batch - 2, 0))

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        of_samples = tensor.dim() and tensor.shape[0] == batch
        return tensor.index_select(0, rows.to(tensor.device)) if of_samples else tensor

    copied = module_copy.copy_modules(
        model, lambda tensor: tensor if isinstance(tensor, nn.Parameter) else tensor.clone()
    )
    copied.train(is_training)
    results = []
    for change in (lambda tensor: tensor, changed):
        with generators.kept(session().axes.device), torch.no_grad():
            torch.manual_seed(0)
            a, k = trees.mapped((args, kwargs), change)
            results.append(trees.leaves(copied(*a, **k)))
    return batch > 1 and all(
        one.dim() > 0 and one.shape[0] == batch and torch.allclose(one[:-1].double(), other[:-1].double(), 1e-4, 1e-6)
        for one, other in zip(*results, strict=True)
    )
