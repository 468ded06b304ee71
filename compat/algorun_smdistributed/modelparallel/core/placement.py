"""Manual partition: which stage each module gets that a script has put into a partition."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from algorun_smdistributed.signatures import manual_order
from algorun_train.common.errors import UserError
from algorun_train.parallel.model.segments import Cutting, modules_around

MARK = "_smp_partition"
SHOWN = 4  # modules that a warning names


def _wanted(model: nn.Module, unit: str, default: int) -> int:
    """The partition of a unit: its own mark, or that of the module around it, or the default."""
    for name in (*reversed(modules_around(unit)), ""):
        module = model.get_submodule(name)
        if MARK in module.__dict__:
            return int(module.__dict__[MARK])
    return default


def placed(cutting: Cutting, model: nn.Module, default: int | None, stages: int) -> tuple[tuple[int, ...], str | None]:
    """The first segment of each stage, and a sentence about what lies elsewhere than the script says, if anything does.

    UserError where a partition has no module.
    """
    wanted = {unit: _wanted(model, unit, default or 0) for segment in cutting.segments for unit in segment.units}
    if missing := sorted(set(range(stages)) - set(wanted.values())):
        raise UserError(
            f"smp.partition: no module in partition {', '.join(map(str, missing))}; allowed: modules that are called once "
            f'in each of 0 .. {stages - 1}, as "partitions" says; fix: put modules into every one of them, or ask for '
            "fewer partitions"
        )
    sizes = {unit: sum(p.nbytes for p in model.get_submodule(unit).parameters()) for unit in wanted}
    units = [[(wanted[unit], sizes[unit]) for unit in segment.units] for segment in cutting.segments]
    found = manual_order.nearest(units, stages)
    moves = dict(zip(wanted, found.partitions(units), strict=True))
    moved = manual_order.outermost({unit: (wanted[unit], now) for unit, now in moves.items()}, sizes)
    return found.begins, _differs(found.order, moved)


def _differs(order: Sequence[int], moved: Sequence[tuple[str, int, int]]) -> str | None:
    """What of the wanted placement is otherwise; None if all is in order."""
    said = []
    if list(order) != sorted(order):
        said.append(f"pp_rank 0 .. {len(order) - 1} have partitions {', '.join(map(str, order))}")
    if moved:
        shown = [f"{name} (from partition {wanted} to {partition})" for name, wanted, partition in moved[:SHOWN]]
        more = f" and {len(moved) - SHOWN} more" if len(moved) > SHOWN else ""
        said.append(f"moved: {', '.join(shown)}{more}")
    if not said:
        return None
    return (
        "warning: smp.partition: stages run one after the other, in the order of the model's calls, which this placement "
        f"does not follow; {'; '.join(said)}; results are the same, memory and time may differ"
    )
