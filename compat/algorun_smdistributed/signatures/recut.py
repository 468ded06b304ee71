"""Cuts a model again at known places, for arguments of another signature: every stage keeps its weights."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.parallel.cut.any_module import Cut, Search
from algorun_train.parallel.model.segments import SegmentSpec


def recut(
    model: nn.Module,
    example: object,
    stages: Sequence[Sequence[SegmentSpec]],
) -> Cut:
    """A cut with one segment for each stage of an earlier cut. `stages` are the segments of these stages.

    `example` has the new signature, see `cut`. The weights of other ranks' stages need not be up to date.
    Raises UserError if the model cannot be cut there for this example, or uses a stage's weight in another stage.
    """
    search = Search(model, example)
    calls = search.calls()
    called = [[unit for segment in stage for unit in segment.units if unit in calls] for stage in stages]
    for stage, found in zip(stages, called, strict=True):
        if not found:
            raise UserError(_refused(model, f"{stage[0].units[0]} is not called, with which a stage begins"))
    firsts = {min(found, key=lambda unit: calls[unit].begin) for found in called[1:]}
    units = sorted((calls[unit] for found in called for unit in found), key=lambda call: call.begin)
    places = search.places(units, only=firsts)
    if search.refused:
        unit, reason = next(iter(search.refused.items()))
        raise UserError(_refused(model, f"at {unit} it cannot be cut: {reason}"))
    cutting = search.cutting(places)
    for new, stage, found in zip(cutting.segments, stages, called, strict=True):
        own = {name for segment in stage for name in segment.parameters}
        strange = [name for name in new.parameters if name in search.used() and name not in own]
        if set(new.units) != set(found) or strange:
            what = strange[0] if strange else new.units[0]
            raise UserError(_refused(model, f"{what} is used in another stage"))
    return cutting


def _refused(model: nn.Module, why: str) -> str:
    return (
        f"the model {type(model).__name__} is called with arguments of another form than at first, and {why}; allowed: "
        "calls that can be cut at the same places; fix: the same arguments, padded to one length, in every call"
    )
