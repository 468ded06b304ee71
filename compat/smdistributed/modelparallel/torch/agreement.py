"""Before a step: the ranks of one pipeline tell each other what they call, and do it only when all call the same."""

from __future__ import annotations

import json
from dataclasses import asdict, astuple, dataclass

import torch

from algorun_train.errors import UserError

from .fitting import Fit
from .meeting import together
from .session import session

LONGEST = 1200  # characters of an error


@dataclass(frozen=True, slots=True)
class Header:
    """What one rank is about to do."""

    rank: int
    function: str
    training: bool
    gradients: bool
    fit: tuple[str, int, int, int, str]
    """of the rank with the first stage: how its batch goes through the stages"""
    error: str = ""


def agree(mine: Header) -> Fit:
    """How the batch goes through the stages, when all ranks of the pipeline call the same function.

    UserError on all of them when they do not, or one has an error.
    """
    here = session()
    try:
        rows = together(here.layout.grid.pipelines[here.axes.dp_rank], mine.function, json.dumps(asdict(mine)).encode())
    except RuntimeError as error:
        raise UserError(
            f"{mine.function}: another rank of this pipeline has ended or failed while rank {mine.rank} calls it; every "
            "@smp.step function has to be called on all ranks of a pipeline, also for evaluation; "
            "fix: call it on every rank, not on rank 0 alone"
        ) from error
    found = [Header(**json.loads(row)) for row in rows]
    if broken := next((each.error for each in found if each.error), None):
        raise UserError(broken)
    if len({(each.training, each.gradients) for each in found}) > 1:
        raise UserError(
            f"{mine.function}: the model is in training, or under torch.no_grad, on some ranks of this pipeline and not on "
            "others; fix: the same on all of them"
        )
    return Fit(*found[0].fit)


def header(function: str, is_training: bool, fit: Fit, error: str) -> Header:
    return Header(
        session().comm.rank, function[:200], is_training, torch.is_grad_enabled(), astuple(fit), error[:LONGEST]
    )
