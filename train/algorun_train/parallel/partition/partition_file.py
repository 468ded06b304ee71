"""The partition as a JSON file: a decision that is read, edited by hand and used again. Names, not indices.

Moving a unit's name from the end of one stage to the begin of the next, or back, makes a manual partition. What was
profiled and predicted is in the file as well; predictions are for the reader, and are made anew for the cuts found.
"""

import difflib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from algorun_train import files
from algorun_train.errors import UserError

from .json_table import JsonTable
from .partitioner import Decision, Segment

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
    job: Job
    stages: tuple[tuple[str, ...], ...]
    """names of the units of each stage"""
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Reused:
    """A partition file that fits the model at hand."""

    begins: tuple[int, ...]
    """index of the first segment of each stage"""
    differs: tuple[str, ...]
    """what is not as it was when the partition was decided, one phrase each"""
    outdated: bool
    """the microbatches are others: its cuts may not be the best ones, and its figures are of another job"""
    profiled: bool
    """its profile holds for these microbatches: predictions need no profiling"""


def model_hash(parameters: Iterable[tuple[str, Sequence[int], str]]) -> str:
    """sha256 over (name, shape, dtype) of all parameters, in any order."""
    rows = sorted([name, [int(n) for n in shape], dtype] for name, shape, dtype in parameters)
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def write(path: Path, job: Job, segments: Sequence[Segment], decision: Decision) -> None:
    """The file appears complete."""
    ends = [*decision.begins[1:], len(segments)]
    cut = [segments[begin:end] for begin, end in zip(decision.begins, ends, strict=True)]
    table = {
        "format": FORMAT,
        "job": asdict(job),
        "stages": [{"units": [unit for segment in stage for unit in segment.units]} for stage in cut],
        "decision": asdict(decision),
        "segments": [asdict(segment) | {"shared": dict(segment.shared)} for segment in segments],
    }
    files.write_json(path, table)


def read(path: Path) -> PartitionFile:
    """UserError where it cannot be read, is no JSON, or has another format or a value that is not allowed."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        fix = "give an existing file, or let it be made by profiling"
        raise UserError(f"partition file {path} cannot be read: {error.strerror}; fix: {fix}") from None
    except (ValueError, RecursionError) as error:
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
    """The partition of `file` for this `job`, whose model has segments of these `units` and is to have `stages`.

    UserError where the file is of another model, or its stages are not the model's units in their order, cut between
    segments.
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
    pairs = [
        (f"{name} {getattr(then, key)} then, {getattr(now, key)} now", getattr(then, key) != getattr(now, key))
        for key, name in _COMPARED.items()
    ]
    differs = tuple(text for text, other in [*pairs, ("the model can be cut in other places now", cuts)] if other)
    machine = then.device != now.device or then.dtype != now.dtype
    return Reused(begins, differs, outdated=shapes or count, profiled=not (shapes or cuts or machine))


def _segment(table: JsonTable) -> Segment:
    return Segment(
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
