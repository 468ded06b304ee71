"""The partition as a JSON file, for people to read and edit and for later jobs to use: names of units, not indices.

To partition by hand, move a unit's name from the end of one stage to the begin of the next, or back. The file also has the
profile and the predictions. Predictions are for the reader; a job that uses the file predicts anew.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from algorun_train.common import files
from algorun_train.common.errors import UserError
from algorun_train.common.json_text import loads

from .costs import Partition, SegmentProfile
from .json_table import JsonTable

PARTITION = "partition.json"  # its name in a job's output folder
FORMAT = 1
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Job:
    """What a partition was decided for."""

    model: str
    """`model_hash` of the parameters"""
    torch: str
    device: str
    dtype: str
    microbatch_shapes: Shapes
    """of every input of the model, for one microbatch"""
    microbatches: int
    schedule: str
    ranks: int
    optimize: str
    limit_bytes: int | None
    recompute: bool = False
    """missing in older files"""


@dataclass(frozen=True, slots=True)
class PartitionFile:
    """The content of a file, without its predictions."""

    job: Job
    stages: tuple[tuple[str, ...], ...]
    """names of the units of each stage"""
    segments: tuple[SegmentProfile, ...]


@dataclass(frozen=True, slots=True)
class Reused:
    """A partition file that fits the model at hand."""

    begins: tuple[int, ...]
    """index of the first segment of each stage"""
    differs: tuple[str, ...]
    """what has changed since the file was written, one phrase each"""
    outdated: bool
    """the job has other microbatches: the cuts may not be the best ones, and the file's figures do not apply"""
    profiled: bool
    """the profile in the file applies to this job"""


def write(path: Path, job: Job, segments: Sequence[SegmentProfile], partition: Partition) -> None:
    """Writes the file atomically: it appears complete or not at all. On one rank."""
    ends = [*partition.begins[1:], len(segments)]
    cut = [segments[begin:end] for begin, end in zip(partition.begins, ends, strict=True)]
    table = {
        "format": FORMAT,
        "job": asdict(job),
        "stages": [{"units": [unit for segment in stage for unit in segment.units]} for stage in cut],
        "decision": asdict(partition),
        "segments": [asdict(segment) | {"shared": dict(segment.shared)} for segment in segments],
    }
    files.write_json(path, table)


def read_partition(path: Path) -> PartitionFile:
    """The content of a file of this version or of 0.1.0.

    Raises UserError if it cannot be read, is not JSON, or has another format or a value that is not allowed.
    """
    try:
        table = loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        fix = "give an existing file, or let it be made by profiling"
        raise UserError(f"partition file {path} cannot be read: {error.strerror}; fix: {fix}") from None
    except ValueError as error:
        fix = "undo the last edit, or delete the file and profile again"
        raise UserError(f"partition file {path} is not JSON: {error}; fix: {fix}") from None
    top = JsonTable(path, "", table)
    if top.get("format") != FORMAT:
        raise top.wrong("format", f"{FORMAT}", "profile again with this version")
    job = top.table("job")
    limit = None if job.get("limit_bytes") is None else job.whole("limit_bytes")
    return PartitionFile(
        Job(
            **{key: job.text(key) for key in ("model", "torch", "device", "dtype", "schedule", "optimize")},
            microbatch_shapes=job.shapes("microbatch_shapes"),
            microbatches=job.whole("microbatches", 1),
            ranks=job.whole("ranks", 1),
            limit_bytes=limit,
            recompute=job.flag("recompute"),
        ),
        tuple(stage.names("units") for stage in top.tables("stages")),
        tuple(_segment(segment) for segment in top.tables("segments")),
    )


def reuse(path: Path, file: PartitionFile, job: Job, units: Sequence[Sequence[str]], stages: int) -> Reused:
    """The partition of `file` for this `job`, whose model has segments of these `units` and gets this number of stages.

    Raises UserError if the file is of another model, or if its stages are not the model's units in the model's order, cut
    between segments.
    """
    if file.job.model != job.model:
        raise UserError(
            f"partition file {path}: model {file.job.model[:12]}.. is not this one ({job.model[:12]}..: names, shapes "
            "and dtypes of parameters); allowed: the model it was made with; fix: use its options, or "
            "a --partition that does not exist yet"
        )
    if len(file.stages) != stages:
        raise UserError(
            f"partition file {path}: stages has {len(file.stages)} of them; allowed: {stages}, as this job has; fix: "
            "run it with as many stages, join or split stages, or a --partition that does not exist yet"
        )
    begins = _begins(path, file.stages, units)
    then, now = file.job, job
    shapes, count = then.microbatch_shapes != now.microbatch_shapes, then.microbatches != now.microbatches
    cuts = tuple(s.units for s in file.segments) != tuple(map(tuple, units))
    differs = (*differences(then, now), *(["the model can be cut in other places now"] if cuts else []))
    machine = then.device != now.device or then.dtype != now.dtype
    return Reused(begins, differs, outdated=shapes or count, profiled=not (shapes or cuts or machine))


def differences(then: Job, now: Job) -> tuple[str, ...]:
    """What is another between two jobs with the same model, one phrase each."""
    return tuple(
        f"{name} {getattr(then, key)} then, {getattr(now, key)} now"
        for key, name in _COMPARED.items()
        if getattr(then, key) != getattr(now, key)
    )


def completed(file: PartitionFile, units: Sequence[Sequence[str]], default: int | None) -> PartitionFile:
    """The file with the units that it does not name in the stage `default`, in the order of the model."""
    if default is None or default >= len(file.stages):
        return file
    order = [unit for segment in units for unit in segment]
    named = {unit for stage in file.stages for unit in stage}
    place = {unit: index for index, unit in enumerate(order)}
    missing = [unit for unit in order if unit not in named]
    stages = list(file.stages)
    stages[default] = tuple(sorted([*stages[default], *missing], key=lambda unit: place.get(unit, -1)))
    return replace(file, stages=tuple(stages))


def _segment(table: JsonTable) -> SegmentProfile:
    return SegmentProfile(
        name=table.text("name"),
        units=table.names("units"),
        forward_s=table.seconds("forward_s"),
        backward_s=table.seconds("backward_s"),
        saved_bytes=table.whole("saved_bytes"),
        parameter_bytes=table.whole("parameter_bytes"),
        boundary_bytes=table.whole("boundary_bytes"),
        shared=table.sizes("shared"),
    )


_COMPARED = {
    "microbatch_shapes": "shape of a microbatch",
    "microbatches": "microbatches",
    "schedule": "schedule",
    "ranks": "pipeline ranks",
    "device": "device",
    "dtype": "dtype",
    "torch": "torch",
    "optimize": "optimize",
    "limit_bytes": "limit in bytes",
    "recompute": "recompute",
}


def _begins(path: Path, stages: Sequence[Sequence[str]], units: Sequence[Sequence[str]]) -> tuple[int, ...]:
    order = [unit for segment in units for unit in segment]
    listed = [unit for stage in stages for unit in stage]
    where = f"partition file {path}: stages"
    known, counts = set(order), Counter(listed)
    for place, stage in enumerate(stages):
        if not stage:
            raise UserError(f"{where}[{place}].units is empty; allowed: at least one unit; fix: move one there")
        for unit in stage:
            if unit not in known:
                near = difflib.get_close_matches(unit, order, n=1)
                hint = f"did you mean {near[0]}?" if near else f"use the model's units, from {order[0]} to {order[-1]}"
                raise UserError(
                    f"{where}[{place}].units: {unit!r} is no unit; allowed: names of the model's units; fix: {hint}"
                )
            if counts[unit] > 1:
                raise UserError(
                    f"{where}[{place}].units: {unit} is there {counts[unit]} times; allowed: every unit once; fix: "
                    "remove the others"
                )
    for place, unit in enumerate(order):
        if unit not in counts:
            raise UserError(f"{where}: unit {unit} is missing; allowed: every unit once; fix: {_after(order, place)}")
    for place, (expected, unit) in enumerate(zip(order, listed, strict=True)):
        if unit != expected:
            raise UserError(
                f"{where}: unit {unit} comes before {expected}; allowed: the order of the model; fix: "
                f"{_after(order, place)}"
            )
    firsts = {segment[0]: place for place, segment in enumerate(units)}
    begins = []
    for place, stage in enumerate(stages):
        if stage[0] not in firsts:
            inside = next(segment for segment in units if stage[0] in segment)
            raise UserError(
                f"{where}[{place}] begins with {stage[0]}, where the model cannot be cut; allowed: {inside[0]} to "
                f"{inside[-1]} in one stage; fix: move all of them"
            )
        begins.append(firsts[stage[0]])
    return tuple(begins)


def _after(order: Sequence[str], place: int) -> str:
    return f"put {order[place]} {f'after {order[place - 1]}' if place else 'first'}"
