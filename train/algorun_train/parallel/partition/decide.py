"""How a job's model is split: cut, profiled and decided on once, the same on all ranks, and kept in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import nn

from algorun_train.errors import UserError
from algorun_train.files import writable
from algorun_train.options.job_options import PipelineJobOptions
from algorun_train.options.mp_parameters import MpParameters
from algorun_train.options.pipeline_layout import Layout
from algorun_train.parallel import draw
from algorun_train.parallel.cut.any_module import Cut, cut
from algorun_train.parallel.cut.layer_list import layers
from algorun_train.parallel.cut.on_one_rank import LIMIT, by_leader
from algorun_train.parallel.cut.uncut import Whole
from algorun_train.parallel.segments import Cutting, SegmentSpec, TensorSpec
from algorun_train.parallel.trees import arguments, leaves
from algorun_train.ranks.communicator import Communicator

from . import imbalance, partition_file
from .memory import Memory, moments_of, preallocated
from .partition import refusal
from .partition_file import Job, PartitionFile
from .partitioner import Decision, Partitioner, Segment
from .profiling import combined, entries, profile

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

    def stages(self) -> list[tuple[SegmentSpec, ...]]:
        """The segments of each stage."""
        ends = [*self.begins[1:], len(self.cutting.segments)]
        return [self.cutting.segments[begin:end] for begin, end in zip(self.begins, ends, strict=True)]


class Decider:
    """Splits one model for one layout. All methods are called on all ranks and return the same there."""

    def __init__(
        self,
        config: PipelineJobOptions,
        wishes: MpParameters,
        layout: Layout,
        model: nn.Module,
        comm: Communicator,
        say: Say,
        loss: Callable[[Any], torch.Tensor] | None = None,
        by_layers: bool = False,
    ) -> None:
        self._config, self._wishes, self._layout, self._comm, self._say = config, wishes, layout, comm, say
        self._model, self._loss, self._by_layers = model, loss, by_layers
        self._limit = None if config.memory_limit_mb is None else round(config.memory_limit_mb * MIB)
        self._memory = Memory(
            moments=moments_of(config.optimizer, config.momentum),
            preallocated=preallocated(torch.__version__),
            recompute=config.recompute,
        )

    def split(self, example: Any, default_file: Path) -> Split:
        """The split of the partition file, or a new one, which is written. UserError alike on all ranks.

        A file that is there when the job names it stays as it is, and so do its cuts, whatever else has changed.
        """
        config, layout = self._config, self._layout
        if layout.stages == 1 and not (config.profile_only or config.partition or self._limit):
            whole = Whole(self._model, example, self._comm.from_leader(lambda: _output(self._model, example)))
            return Split(whole, (0,), (whole.segments[0].entry, whole.output))
        self._same_models(example)
        cutting = self._cut(example)
        job = self._comm.from_leader(lambda: self._job(example))  # hosts' devices may differ, answers may not
        path = config.partition or default_file
        if config.partition and (file := self._comm.from_leader(lambda: _read(path))):
            return self._as_in_file(path, file, job, cutting, example)
        if not self._wishes.auto_partition:
            raise UserError(
                "mp_parameters: auto_partition = false without a partition; allowed: with one; "
                "fix: --partition FILE, made by a run with --profile-only"
            )
        what = "option --partition" if config.partition else f"{PARTITION} of the job"
        self._comm.from_leader(lambda: writable(path.parent, f"{what}: folder", "another folder"))
        segments = self._profiled(cutting)
        decision = self._comm.from_leader(lambda: self._best(segments))
        if decision is None and (finer := self._finest(cutting, example)):
            cutting, segments = finer, self._profiled(finer)
            decision = self._comm.from_leader(lambda: self._best(segments))
        if decision is None:
            self._comm.from_leader(lambda: self._refuse(segments))
        assert decision is not None
        self._comm.from_leader(lambda: partition_file.write(path, job, segments, decision))
        return self._told(path, cutting, segments, decision, new=True)

    def _as_in_file(self, path: Path, file: PartitionFile, job: Job, cutting: Cut, example: Any) -> Split:
        """The cuts of a file that was there, which stays as it is."""
        if _unknown(file, cutting) and (finer := self._finest(cutting, example)) and not _unknown(file, finer):
            cutting = finer  # it was made when only smaller units did fit
        units = [segment.units for segment in cutting.segments]
        full = _completed(file, units, self._wishes.default_partition)
        reused = partition_file.reuse(path, full, job, units, self._layout.stages)
        for text in reused.differs:
            self._say(f"warning: partition {path}: {text}")
        if reused.outdated:
            self._say(
                f"warning: partition {path}: its cuts are kept, its figures are of other microbatches; fix: a "
                "--partition that does not exist yet, for cuts decided anew"
            )
        segments = file.segments if reused.profiled else self._profiled(cutting)
        decision = self._comm.from_leader(lambda: self._of_cuts(segments, reused.begins))
        return self._told(path, cutting, segments, decision, new=False)

    def _told(self, path: Path, cutting: Cut, segments: tuple[Segment, ...], decision: Decision, new: bool) -> Split:
        self._tell(path, decision, segments, new)
        if warning := imbalance.warning(decision, segments, cutting.refused, self._config.optimize):
            self._say(warning)
        specs = self._comm.from_leader(lambda: entries(cutting, self._comm.device, self._config.precision), LIMIT)
        return Split(cutting, decision.begins, tuple(specs), segments, decision)

    def _cut(self, example: Any) -> Cut:
        stages, fewer = self._layout.stages, self._wishes.fewer_stages

        def search() -> Cut:
            if self._by_layers:
                return layers(self._model, example)
            return cut(self._model, example, stages=stages, fewer=fewer)

        return by_leader(self._comm, self._model, example, search)

    def _finest(self, cutting: Cut, example: Any) -> Cut | None:
        """The model cut at the smallest units; None where that gives no more segments than `cutting` has."""
        if self._by_layers:
            return None
        stages = self._layout.stages
        try:
            finer = by_leader(
                self._comm, self._model, example, lambda: cut(self._model, example, stages=stages, finest=True)
            )
        except UserError:  # inside its units the model cannot be cut; alike on all ranks
            return None
        return finer if len(finer.segments) > len(cutting.segments) else None

    def _same_models(self, example: Any) -> None:
        """One rank cuts for all. UserError where another one has weights or an example of other names or shapes."""
        named = [*self._model.named_parameters(), *self._model.named_buffers()]
        specs = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in named]
        inputs = [(f"input {i}", tuple(t.shape), str(t.dtype)) for i, t in enumerate(leaves(arguments(example)))]
        hashes = self._comm.gather(partition_file.model_hash(inputs + specs))
        if len(set(hashes)) == 1:
            return
        rows = self._comm.gather(inputs + specs)
        for rank, row in enumerate(rows):
            if row != rows[0]:
                mine, its = next(pair for pair in zip_longest(rows[0], row) if pair[0] != pair[1])
                raise UserError(
                    f"rank {rank} has another model or example than rank 0: {_shown(its)} in the place of "
                    f"{_shown(mine)}; allowed: the same on all ranks; fix: build both alike on every rank"
                )

    def _job(self, example: Any) -> Job:
        device = self._comm.device
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
            recompute=self._config.recompute,
        )

    def _profiled(self, cutting: Cutting) -> tuple[Segment, ...]:
        """All ranks profile at once, since they will compute at once too; the mean of their times counts."""
        mine = profile(cutting, self._comm.device, precision=self._config.precision, loss=self._loss)
        return tuple(combined(self._comm.gather(mine)))

    def _best(self, segments: Sequence[Segment]) -> Decision | None:
        partitioner = Partitioner(segments, **self._place(), memory=self._memory)
        return partitioner.solve(self._config.optimize, self._limit)

    def _refuse(self, segments: Sequence[Segment]) -> None:
        assert self._limit is not None  # without one every cut will do
        raise refusal(segments, **self._place(), limit_bytes=self._limit, memory=self._memory)

    def _place(self) -> dict[str, Any]:
        layout = self._layout
        return {
            "ranks": layout.grid.pp,
            "chunks": layout.chunks,
            "microbatches": layout.microbatches,
            "schedule": layout.schedule,
        }

    def _of_cuts(self, segments: Sequence[Segment], begins: tuple[int, ...]) -> Decision:
        decision = Partitioner(segments, **self._place(), memory=self._memory).decide(begins)
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


def _output(model: nn.Module, example: Any) -> TensorSpec:
    """What the model gives. Its buffers stay as they were: one rank runs it, and all go on with equal statistics."""
    before = [(module, dict(module._buffers)) for module in model.modules()]
    copies = [{name: t.detach().clone() for name, t in own.items() if t is not None} for _, own in before]
    with torch.no_grad():
        spec = TensorSpec.of(model(example))
        for (module, own), values in zip(before, copies, strict=True):
            module._buffers.update(own)
            for name, value in values.items():
                own[name].copy_(value)
    return spec


def _shown(spec: tuple[str, tuple[int, ...], str] | None) -> str:
    return f"{spec[0]} {list(spec[1])} {spec[2].removeprefix('torch.')}" if spec else "nothing"


def _read(path: Path) -> PartitionFile | None:
    return partition_file.read(path) if path.exists() else None


def _unknown(file: PartitionFile, cutting: Cutting) -> bool:
    """Whether the file names units that are none of this cut."""
    units = {unit for segment in cutting.segments for unit in segment.units}
    return any(unit not in units for stage in file.stages for unit in stage)


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
