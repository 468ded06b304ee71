"""How a job's model is split: cut, profiled and decided on once, the same on all ranks, and kept in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..config import PipelineConfig
from ..errors import UserError
from ..files import writable
from ..layout import Layout
from ..mesh import Mesh
from ..mp_parameters import Wishes
from . import draw, partition_file
from .cut import cut
from .cutting import Cutting, TensorSpec
from .memory import Memory, moments_of, preallocated
from .partition import solve
from .partition_file import Job, PartitionFile
from .partitioner import Decision, Partitioner, Segment
from .profiling import combined, entries, profile
from .trees import leaves
from .whole import Whole

MIB = 2**20
PARTITION = "partition.json"
Say = Callable[[object], None]


@dataclass(frozen=True, slots=True)
class Split:
    """A model cut into stages. `entries` holds what enters each segment, and last the model's output, in the types
    that the device computes in; `decision` what the partition is predicted to cost, None where nothing was profiled."""

    cutting: Cutting
    begins: tuple[int, ...]
    entries: tuple[tuple[TensorSpec, ...], ...]
    segments: tuple[Segment, ...] = ()
    decision: Decision | None = None


class Decider:
    """Splits one model for one layout. All methods are called on all ranks and return the same there."""

    def __init__(
        self,
        config: PipelineConfig,
        wishes: Wishes,
        layout: Layout,
        model: nn.Module,
        mesh: Mesh,
        say: Say,
        loss: Callable[[Any], torch.Tensor] | None = None,
    ) -> None:
        self._config, self._wishes, self._layout, self._mesh, self._say = config, wishes, layout, mesh, say
        self._model, self._loss = model, loss
        self._limit = None if config.memory_limit_mb is None else round(config.memory_limit_mb * MIB)
        self._memory = Memory(
            moments=moments_of(config.optimizer, config.momentum), preallocated=preallocated(torch.__version__)
        )

    def split(self, example: Any, default_file: Path) -> Split:
        """The split of the partition file, or a new one, which is written. UserError alike on all ranks."""
        config, layout = self._config, self._layout
        if layout.stages == 1 and not (config.profile_only or config.partition or self._limit):
            with torch.no_grad():
                whole = Whole(self._model, example, self._model(example))
            return Split(whole, (0,), (whole.segments[0].entry, whole.output))
        cutting: Cutting = self._mesh.on_all(lambda: cut(self._model, example, stages=layout.stages))
        self._same_cuts(cutting)
        job = self._job(example)
        path = config.partition or default_file
        used = self._used(path, job, cutting) if config.partition else None
        if used is None and not self._wishes.auto_partition:
            raise UserError(
                "mp_parameters: auto_partition = false without a partition; allowed: with one; "
                "fix: --partition FILE, made by a run with --profile-only"
            )
        begins, segments = used or (None, ())
        if begins is None:  # before the costly part
            self._mesh.from_leader(lambda: writable(path.parent, "option --partition: folder", "another folder"))
        if not segments:
            segments = self._profiled(cutting)
        decision = self._mesh.from_leader(lambda: self._decision(segments, begins))
        if begins is None:
            self._mesh.from_leader(lambda: partition_file.write(path, job, segments, decision))
        self._tell(path, decision, segments, new=begins is None)
        specs = entries(cutting, self._mesh.device, config.precision)
        return Split(cutting, decision.begins, tuple(specs), segments, decision)

    def _same_cuts(self, cutting: Cutting) -> None:
        """Cuts are proven by computing; two kinds of CPU might disagree."""
        rows = self._mesh.gather([segment.units for segment in cutting.segments])
        for rank, row in enumerate(rows):
            if row != rows[0]:
                raise UserError(
                    f"rank {rank} finds {len(row)} places to cut the model, rank 0 finds {len(rows[0])}; allowed: the "
                    "same on all hosts; fix: use hosts of one kind with the same image"
                )

    def _job(self, example: Any) -> Job:
        device = self._mesh.device
        return Job(
            model=partition_file.model_hash(
                (n, tuple(p.shape), str(p.dtype)) for n, p in self._model.named_parameters()
            ),
            torch=torch.__version__,
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            dtype=self._config.precision,
            microbatch_shapes=tuple(tuple(tensor.shape) for tensor in leaves(example)),
            microbatches=self._layout.microbatches,
            schedule=self._layout.schedule,
            ranks=self._layout.grid.pp,
            optimize=self._config.optimize,
            limit_bytes=self._limit,
        )

    def _used(
        self, path: Path, job: Job, cutting: Cutting
    ) -> tuple[tuple[int, ...] | None, tuple[Segment, ...]] | None:
        """(begins, segments) of a partition file that is there; without begins it has to be decided anew."""
        units = [segment.units for segment in cutting.segments]

        def look() -> tuple[tuple[int, ...] | None, tuple[Segment, ...], list[str]] | None:
            if not path.exists():
                return None
            file = _completed(partition_file.read(path), units, self._wishes.default_partition)
            reused = partition_file.reuse(path, file, job, units, self._layout.stages)
            told = [f"warning: partition {path}: {text}" for text in reused.differs]
            segments = file.segments if reused.profiled else ()
            if reused.outdated:
                return None, segments, [*told, f"warning: partition {path} is decided anew"]
            return reused.begins, segments, told

        found = self._mesh.from_leader(look)
        if found is None:
            return None
        for text in found[2]:
            self._say(text)
        return found[:2]

    def _profiled(self, cutting: Cutting) -> tuple[Segment, ...]:
        """All ranks profile at once, since they will compute at once too; the mean of their times counts."""
        mine = profile(cutting, self._mesh.device, precision=self._config.precision, loss=self._loss)
        return tuple(combined(self._mesh.gather(mine)))

    def _decision(self, segments: Sequence[Segment], begins: tuple[int, ...] | None) -> Decision:
        layout = self._layout
        place = (segments, layout.grid.pp, layout.chunks, layout.microbatches, layout.schedule)
        if begins is None:
            return solve(*place, optimize=self._config.optimize, limit_bytes=self._limit, memory=self._memory)
        decision = Partitioner(*place, memory=self._memory).decide(begins)
        largest = max(decision.rank_bytes)
        if self._limit is not None and largest > self._limit:
            raise UserError(
                f"option --partition: a rank needs {largest / MIB:.1f} MiB; allowed: {self._limit / MIB:.1f} MiB "
                "(--memory-limit-mb); fix: move units, or a higher limit"
            )
        return decision

    def _tell(self, path: Path, decision: Decision, segments: Sequence[Segment], new: bool) -> None:
        self._say(
            f"partition: {'written to' if new else 'of'} {path}; planned step {decision.step_s * 1e3:.1f} ms, "
            f"bubble {decision.bubble:.1%}, largest rank {max(decision.rank_bytes) / MIB:.1f} MiB"
        )
        if self._config.explain or self._config.profile_only:
            layout = self._layout
            if layout.grid.pp > 1:
                self._say(draw.schedule_text(layout.schedule, layout.grid.pp, layout.chunks, layout.microbatches))
            self._say(draw.decision_text(decision, segments))


def _completed(file: PartitionFile, units: Sequence[Sequence[str]], default: int | None) -> PartitionFile:
    """The file with the units that it does not name in the stage `default`, at their place in the model."""
    if default is None or default >= len(file.stages):
        return file
    order = [unit for segment in units for unit in segment]
    named = {unit for stage in file.stages for unit in stage}
    place = {unit: index for index, unit in enumerate(order)}
    missing = [unit for unit in order if unit not in named]
    stages = list(file.stages)
    stages[default] = tuple(sorted([*stages[default], *missing], key=lambda unit: place.get(unit, -1)))
    return replace(file, stages=tuple(stages))
