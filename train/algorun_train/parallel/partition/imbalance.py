"""Warns where one stage has nearly all of the time, so that the pipeline gains nothing, and says why. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from .costs import Partition, SegmentProfile

MOST = 0.8  # of the time of all stages, in one of them


def warning(
    partition: Partition, segments: Sequence[SegmentProfile], refused: Mapping[str, str], optimize: str = "speed"
) -> str | None:
    """One line about a stage with more than MOST of the planned time; None if there is no such stage.

    `refused` says why the model cannot be cut at other units (`cut.any_module.Cut`). `optimize` is the option that the
    partition was searched with.
    """
    times = [forward + backward for forward, backward in zip(partition.forward_s, partition.backward_s, strict=True)]
    total = sum(times)
    if len(times) == 1 or max(times) <= MOST * total:
        return None
    stage = times.index(max(times))
    ends = [*partition.begins[1:], len(segments)]
    held = segments[partition.begins[stage] : ends[stage]]
    units = [unit for segment in held for unit in segment.units]
    text = (
        f"warning: stage {stage} of {len(times)} ({units[0]} .. {units[-1]}) has {max(times) / total:.0%} of the planned "
        "time, so that the others mostly wait"
    )
    largest = max(held, key=lambda segment: segment.forward_s + segment.backward_s)
    if largest.forward_s + largest.backward_s > MOST * total:
        return f"{text}; {_uncut(largest, refused)}"
    return f"{text}; it was split for the least memory: optimize speed goes by time" if optimize == "memory" else text


def _uncut(segment: SegmentProfile, refused: Mapping[str, str]) -> str:
    """Why a segment cannot be cut: the reason that most of its outermost units share."""
    found = [unit for unit in segment.units if unit in refused]
    if not found:
        return f"{segment.name} is one unit, which cannot be cut"
    depth = min(unit.count(".") for unit in found)
    counts = Counter(refused[unit] for unit in found if unit.count(".") == depth)
    reason = counts.most_common(1)[0][0]
    unit = next(unit for unit in found if unit.count(".") == depth and refused[unit] == reason)
    more = f" (nor at {len(found) - 1} more)" if len(found) > 1 else ""
    return f"the model cannot be cut at {unit}{more}: {reason}"
