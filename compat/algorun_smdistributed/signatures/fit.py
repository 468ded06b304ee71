"""How a batch goes through stages, each of which is made for one signature."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.parallel.model import trees
from algorun_train.parallel.model.model_stages import ModelStages
from algorun_train.parallel.model.segments import TensorSpec
from algorun_train.parallel.run.pipeline import Pipeline

from .model_call import ModelCall, Signature, name_of

PLAN, AGAIN = "plan", "again"


@dataclass(frozen=True, slots=True)
class Fit:
    """A batch goes through the stages for signature number `number`: `rows` samples per microbatch (0: as many as they are
    made for) in `pieces` passes, under the `autocast` to this type ("": none).

    Or the model is to be `cut` first: by a new PLAN, on all ranks of the job, or AGAIN at the cuts that there are, on
    the ranks of this pipeline.
    """

    cut: str = ""
    number: int = 0
    pieces: int = 1
    rows: int = 0
    autocast: str = ""


@dataclass(slots=True, eq=False)
class Stages:
    """This rank's stages for one signature, which is number `number`."""

    number: int
    signature: Signature
    independent: dict[bool, bool]
    """whether samples are independent of each other in training (True), and in evaluation"""
    pipeline: Pipeline
    split: ModelStages
    """where the model is cut"""
    trains: bool | None = None
    """the mode that its modules are in"""


def fit(calls: Sequence[ModelCall], model: nn.Module, made: Iterable[Stages], trains: bool, plans: bool) -> Fit:
    """How the calls of one batch's microbatches go through stages. `trains`: the pass may need gradients; `plans`: it may
    make a new plan.

    Batches of another size are filled up, or go through in pieces, if no output depends on that: otherwise the model is
    cut again. Stages that train are made for one autocast; evaluation may have any.
    Raises UserError if the calls have several signatures or autocasts.
    """
    signature, autocast = _common([call.signature(model) for call in calls])
    there = [each for each in made if not trains or each.signature.autocast == signature.autocast]
    if plans:
        there = [each for each in there if each.number == 0]  # the one that the plan was made for
    for each in there:
        if each.signature == signature:
            return Fit(number=each.number, autocast=autocast)
    if plans:
        return Fit(cut=PLAN, autocast=autocast)
    for each in there:
        rows, batch = signature.rows_of(each.signature) or (0, 0)
        if rows and each.independent[model.training] and (rows <= batch or not model.training):
            return Fit(number=each.number, pieces=math.ceil(rows / batch), rows=rows, autocast=autocast)
    return Fit(cut=AGAIN, autocast=autocast)


def _common(signatures: Sequence[Signature]) -> tuple[Signature, str]:
    """The signature of all microbatches, and the name of the type that their autocast computes in."""
    if other := next((each for each in signatures if each != signatures[0]), None):
        mine, its, fix = other.difference(signatures[0])
        raise UserError(
            f"the model is called with {mine} in one microbatch and with {its} in another; allowed: the same in all; "
            f"fix: {fix}"
        )
    if len(names := sorted({name_of(each.autocast) or "none" for each in signatures})) > 1:
        raise UserError(
            f"the model is called under different autocasts in the microbatches of one step: {', '.join(names)}; allowed: "
            "the same in all; fix: decide on autocast outside of the step function"
        )
    return signatures[0], name_of(signatures[0].autocast)


def in_pieces(tensors: Sequence[torch.Tensor], made_for: Signature, how: Fit) -> list[tuple[torch.Tensor, ...]]:
    """The tensors of one microbatch in passes of the size that the stages are made for; the last one is filled up."""
    if not how.rows:
        return [tuple(tensors)]
    found = []
    for number in range(how.pieces):
        piece = []
        for tensor, spec in zip(tensors, made_for.tensors, strict=True):
            if TensorSpec.of(tensor) == spec:
                piece.append(tensor)
                continue
            size = spec.shape[0]
            rows = torch.arange(number * size, (number + 1) * size, device=tensor.device).clamp(max=how.rows - 1)
            piece.append(tensor.index_select(0, rows))
        found.append(tuple(piece))
    return found


def whole_of(outputs: Sequence[Any], how: Fit) -> Any:  # Any: the model's output, of the user's own type
    """One output out of the outputs of its pieces, without the rows that only filled them up."""
    if not how.rows:
        return outputs[0]
    columns = zip(*(trees.leaves(output) for output in outputs), strict=True)
    left = iter([torch.cat(column)[: how.rows] for column in columns])
    return trees.mapped(outputs[0], lambda _: next(left))
