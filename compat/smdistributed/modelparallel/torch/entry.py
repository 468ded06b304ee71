"""What the model gets of one microbatch, and how a batch of another size fits stages made for one size."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from algorun import training

from .session import UserError

trees, cutting = training.load("parallel.trees"), training.load("parallel.cutting")


@dataclass(frozen=True, slots=True)
class Entry:
    """A model call's arguments, and the autocast that it is made under (None without)."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    autocast: torch.dtype | None = None

    def example(self, model: nn.Module) -> Any:
        """The arguments as `cut` wants them: a tuple, or a dictionary of named ones."""
        if not self.kwargs:
            return self.args
        try:
            bound = inspect.signature(model.forward).bind(*self.args, **self.kwargs)
        except TypeError as error:
            raise UserError(f"the model's arguments do not fit its forward: {error}") from None
        kinds = {parameter.name: parameter.kind for parameter in inspect.signature(model.forward).parameters.values()}
        named: dict[str, Any] = {}
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

    def on_cpu(self) -> Entry:
        """The same with its tensors on the CPU, without gradients."""
        args, kwargs = trees.mapped((self.args, self.kwargs), lambda tensor: tensor.detach().to("cpu"))
        return Entry(args, kwargs, self.autocast)

    def tensors(self, model: nn.Module) -> list[torch.Tensor]:
        """The tensors among the arguments, in the order in which the first stage wants them."""
        return trees.leaves(trees.arguments(self.example(model)))

    def form(self, model: nn.Module) -> Form:
        plain = trees.mapped(trees.arguments(self.example(model)), lambda _: None)
        return Form(tuple(cutting.TensorSpec.of(t) for t in self.tensors(model)), plain, self.autocast)


@dataclass(frozen=True, slots=True)
class Form:
    """An entry without its data: stages are made for one."""

    tensors: tuple[Any, ...]
    others: Any
    autocast: torch.dtype | None

    def __str__(self) -> str:
        return ", ".join(f"{list(spec.shape)} {str(spec.dtype).removeprefix('torch.')}" for spec in self.tensors)

    def rows_of(self, made_for: Form) -> int | None:
        """The batch size of this form, where it differs from `made_for` in that alone; None where in more."""
        if self.others != made_for.others or len(self.tensors) != len(made_for.tensors):
            return None
        sizes = set()
        for mine, theirs in zip(self.tensors, made_for.tensors, strict=True):
            if mine == theirs:
                continue
            if mine.dtype != theirs.dtype or not mine.shape or mine.shape[1:] != theirs.shape[1:]:
                return None
            sizes.add((mine.shape[0], theirs.shape[0]))
        return sizes.pop()[0] if len(sizes) == 1 else None


@dataclass(frozen=True, slots=True)
class Fit:
    """How a batch goes through the stages: `rows` samples per microbatch (0: as many as the stages are made for) in
    `pieces` passes, after the model is cut `anew` or not."""

    anew: bool = False
    pieces: int = 1
    rows: int = 0


def fit(
    entries: Sequence[Entry], model: nn.Module, made_for: Form | None, may_change: bool, alone: dict[bool, bool]
) -> Fit:
    """How these microbatches go through stages that are made for one form. UserError where they do not.

    `alone` says what `samples_stand_alone` has found, in training and in evaluation: batches of another size are filled
    up, or go through in pieces, which no output may notice.
    """
    forms = [entry.form(model) for entry in entries]
    if other := next((form for form in forms if form != forms[0]), None):
        raise UserError(
            f"the model gets [{forms[0]}] of one microbatch and [{other}] of another; allowed: the same of all; "
            "fix: equal sizes, and arguments that do not change"
        )
    if made_for is None or (may_change and forms[0] != made_for):
        return Fit(anew=True)
    if forms[0] == made_for:
        return Fit()
    rows = forms[0].rows_of(made_for)
    batch = next((b.shape[0] for a, b in zip(forms[0].tensors, made_for.tensors, strict=False) if a != b), 0)
    if not rows or not alone[model.training] or (model.training and rows > batch):
        reason = "" if alone[model.training] else ", since its samples are not independent of each other"
        raise UserError(
            f"the model gets [{forms[0]}] of a microbatch; allowed: [{made_for}], which it was cut for{reason}; "
            f"fix: {'drop_last=True in the data loader' if model.training else 'the batch size of training'}"
        )
    return Fit(pieces=math.ceil(rows / batch), rows=rows)


def samples_stand_alone(model: nn.Module, entry: Entry, is_training: bool) -> bool:
    """Whether every output has a row per sample, which depends on that sample alone: tried with another last sample.

    BatchNorm in training, comparisons between samples and means over the batch show in the other rows.
    """
    args, kwargs = trees.arguments(entry.example(model))
    batch = next((tensor.shape[0] for tensor in entry.tensors(model) if tensor.dim()), 0)
    rows = torch.arange(batch).clamp(max=max(batch - 2, 0))

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        of_samples = tensor.dim() and tensor.shape[0] == batch
        return tensor.index_select(0, rows.to(tensor.device)) if of_samples else tensor

    with _as_it_was(model), torch.no_grad():
        model.train(is_training)
        results = []
        for change in (lambda tensor: tensor, changed):
            with torch.random.fork_rng():
                torch.manual_seed(0)
                a, k = trees.mapped((args, kwargs), change)
                results.append(trees.leaves(model(*a, **k)))
    return all(
        one.dim() > 0 and one.shape[0] == batch and torch.allclose(one[:-1].double(), other[:-1].double(), 1e-4, 1e-6)
        for one, other in zip(*results, strict=True)
    )


@contextlib.contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """Buffers and training flags are the same afterwards."""
    flags = {module: module.training for module in model.modules()}
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for module, flag in flags.items():
            module.training = flag
        for buffer, value in kept:
            buffer.copy_(value)


def in_pieces(tensors: Sequence[torch.Tensor], made_for: Form, how: Fit) -> list[tuple[torch.Tensor, ...]]:
    """The tensors of one microbatch in passes of the size that the stages are made for; the last one is filled up."""
    if not how.rows:
        return [tuple(tensors)]
    found = []
    for number in range(how.pieces):
        piece = []
        for tensor, spec in zip(tensors, made_for.tensors, strict=True):
            if cutting.TensorSpec.of(tensor) == spec:
                piece.append(tensor)
                continue
            size = spec.shape[0]
            rows = torch.arange(number * size, (number + 1) * size, device=tensor.device).clamp(max=how.rows - 1)
            piece.append(tensor.index_select(0, rows))
        found.append(tuple(piece))
    return found


def whole_of(outputs: Sequence[Any], how: Fit) -> Any:
    """One output out of those of the pieces, without the rows that only filled them up."""
    if not how.rows:
        return outputs[0]
    columns = zip(*(trees.leaves(output) for output in outputs), strict=True)
    left = iter([torch.cat(column)[: how.rows] for column in columns])
    return trees.mapped(outputs[0], lambda _: next(left))
