"""Before a pass: the ranks of one pipeline tell each other what they call, and do it only when all call the same."""

from __future__ import annotations

import json
from dataclasses import asdict, astuple, dataclass

from algorun_smdistributed.ranks.meeting import RankMeeting
from algorun_train.common.errors import UserError

from .fit import Fit

LONGEST = 1200  # characters of an error


@dataclass(frozen=True, slots=True)
class Header:
    """What one rank is about to do."""

    training: bool
    gradients: bool
    fit: Fit
    """of the rank with the first stage: how its batch goes through the stages"""
    error: str = ""


def agree(pipeline: RankMeeting, function: str, mine: Header, fix: str) -> Fit:
    """How the batch goes through the stages, when all ranks of the pipeline call the same `function`.

    UserError on all of them when they do not, or one has an error; `fix` tells how to call it.
    """
    told = asdict(mine) | {"fit": astuple(mine.fit), "error": mine.error[:LONGEST]}
    try:
        rows = pipeline.together(function, json.dumps(told).encode())
    except RuntimeError as error:
        raise UserError(
            f"{function}: another rank of this pipeline has ended or failed while rank {pipeline.rank} calls it; {fix}"
        ) from error
    found = [Header(**json.loads(row)) for row in rows]
    if broken := next((each.error for each in found if each.error), None):
        raise UserError(broken)
    if len({(each.training, each.gradients) for each in found}) > 1:
        raise UserError(
            f"{function}: the model is in training, or under torch.no_grad, on some ranks of this pipeline and not on "
            "others; fix: the same on all of them"
        )
    return Fit(*json.loads(rows[0])["fit"])
