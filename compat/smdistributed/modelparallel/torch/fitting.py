"""How a batch goes through stages: each set of them is made for one form of the model's arguments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from algorun_train.errors import UserError
from algorun_train.parallel import segments, trees
from smdistributed.script_types import Result

from .entry import Entry, Form, name_of

if TYPE_CHECKING:
    from algorun_train.parallel.model_stages import ModelStages
    from algorun_train.parallel.run.pipeline import Pipeline


PLAN, AGAIN = "plan", "again"


@dataclass(frozen=True, slots=True)
class Fit:
    """How a batch goes through the stages that are made for form number `form`: `rows` samples per microbatch (0: as many
    as they are made for) in `pieces` passes, under the `autocast` to this type ("": none).

    Or the model is to be `cut` first: by a new PLAN, on all ranks of the job, or AGAIN at the cuts that there are, on
    those of this pipeline.
    """

    cut: str = ""
    form: int = 0
    pieces: int = 1
    rows: int = 0
    autocast: str = ""


@dataclass(slots=True, eq=False)
class Made:
    """Stages for one form. `alone`: whether samples are independent of each other in training, and in evaluation."""

    number: int
    form: Form
    alone: dict[bool, bool]
    pipeline: Pipeline
    split: ModelStages
    """where the model is cut"""
    trains: bool | None = None
    """the mode that its modules are in"""


def fit(entries: Sequence[Entry], model: nn.Module, made: Iterable[Made], trains: bool, plans: bool) -> Fit:
    """How these microbatches go through stages; `trains`: the pass may need gradients, `plans`: it may make a new plan.

    Batches of another size are filled up or go through in pieces where no output can notice: for the others the model
    is cut again. Stages that train are made for one autocast, evaluation may have any.
    """
    form, autocast = _common([entry.form(model) for entry in entries])
    there = [each for each in made if not trains or each.form.autocast == form.autocast]
    if plans:
        there = [each for each in there if each.number == 0]  # the one that the plan was made for
    for each in there:
        if each.form == form:
            return Fit(form=each.number, autocast=autocast)
    if plans:
        return Fit(cut=PLAN, autocast=autocast)
    for each in there:
        rows, batch = form.rows_of(each.form) or (0, 0)
        if rows and each.alone[model.training] and (rows <= batch or not model.training):
            return Fit(form=each.number, pieces=math.ceil(rows / batch), rows=rows, autocast=autocast)
    return Fit(cut=AGAIN, autocast=autocast)


def _common(forms: Sequence[Form]) -> tuple[Form, str]:
    """The form that all microbatches have, and the name of the type that their autocast computes in."""
    if other := next((form for form in forms if form != forms[0]), None):
        mine, its, fix = other.difference(forms[0])
        raise UserError(
            f"the model is called with {mine} in one microbatch and with {its} in another; allowed: the same in all; "
            f"fix: {fix}"
        )
    if len(names := sorted({name_of(form.autocast) or "none" for form in forms})) > 1:
        raise UserError(
            f"the model is called under different autocasts in the microbatches of one step: {', '.join(names)}; allowed: "
            "the same in all; fix: decide on autocast outside of the step function"
        )
    return forms[0], name_of(forms[0].autocast)


def in_pieces(tensors: Sequence[torch.Tensor], made_for: Form, how: Fit) -> list[tuple[torch.Tensor, ...]]:
    """The tensors of one microbatch in passes of the size that the stages are made for; the last one is filled up."""
    if not how.rows:
        return [tuple(tensors)]
    found = []
    for number in range(how.pieces):
        piece = []
        for tensor, spec in zip(tensors, made_for.tensors, strict=True):
            if segments.TensorSpec.of(tensor) == spec:
                piece.append(tensor)
                continue
            size = spec.shape[0]
            rows = torch.arange(number * size, (number + 1) * size, device=tensor.device).clamp(max=how.rows - 1)
            piece.append(tensor.index_select(0, rows))
        found.append(tuple(piece))
    return found


def whole_of(outputs: Sequence[Result], how: Fit) -> Result:
    """One output out of those of the pieces, without the rows that only filled them up."""
    if not how.rows:
        return outputs[0]
    columns = zip(*(trees.leaves(output) for output in outputs), strict=True)
    left = iter([torch.cat(column)[: how.rows] for column in columns])
    return trees.mapped(outputs[0], lambda _: next(left))
