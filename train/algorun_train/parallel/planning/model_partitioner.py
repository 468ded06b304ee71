"""Cuts a model, profiles its segments and partitions them into stages: once for all ranks, with the result in a file.

The decision itself, which segments go to which stage within the memory limit, is `partition.layers_to_stages`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.common.files import writable
from algorun_train.parallel import draw
from algorun_train.parallel.cut.any_module import Cut, cut
from algorun_train.parallel.cut.layer_list import cut_at_layers
from algorun_train.parallel.cut.uncut_model import UncutModel, output_of
from algorun_train.parallel.layout.layout import Layout
from algorun_train.parallel.model.model_stages import ModelStages
from algorun_train.parallel.model.segments import Cutting, TensorSpec
from algorun_train.parallel.model.trees import leaves
from algorun_train.parallel.partition import imbalance, partition_file
from algorun_train.parallel.partition.cost_model import CostModel
from algorun_train.parallel.partition.costs import Begins, Partition, SegmentProfile
from algorun_train.parallel.partition.layers_to_stages import choose_stages, does_not_fit
from algorun_train.parallel.partition.memory import MemoryModel, preallocated
from algorun_train.parallel.partition.partition_file import PARTITION, Job, PartitionFile
from algorun_train.parallel.partition.profiling import combined, entries, profile
from algorun_train.ranks.communicator import LONG_WORK, Communicator

from .model_hash import model_hash
from .on_one_rank import check_same_models, cut_by_leader
from .options import PartitionOptions

MIB = 2**20
Loss = Callable[[Any], torch.Tensor]  # Any: the model's output, of the user's own type


@dataclass(frozen=True, slots=True)
class PartitionedModel:
    """A model in stages. Without a profile (one stage needs none) `segments` is empty and `partition` None."""

    stages: ModelStages
    segments: tuple[SegmentProfile, ...] = ()
    partition: Partition | None = None
    """the predicted costs"""


class ModelPartitioner:
    """Partitions one model for one layout. Call all methods on all ranks; they return the same there."""

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        options: PartitionOptions,
        comm: Communicator,
        loss: Loss | None = None,
        build: Callable[[], nn.Module] | None = None,
        held: float = 1.0,
    ) -> None:
        """`loss` of the output of one microbatch counts with the last segment of the profile. `held` is the share of the weights that
        each rank of a tensor group has; times and activations are those of whole layers.

        The weights of `model` may have no memory (torch's meta device). `build` then makes the same model with weights on the CPU,
        which rank 0 has while it searches for cuts; with one stage only if `model` cannot compute without values.
        """
        self._build = build
        self._model, self._layout, self._options, self._comm, self._loss = model, layout, options, comm, loss
        preallocates = preallocated(torch.__version__)
        self._memory = MemoryModel(options.moments, preallocates, options.recompute, layout.shards, held)

    def partition(self, example: object, default_file: Path) -> PartitionedModel:
        """The partition of `options.file` if it exists, else a new one, which is written there, or to `default_file`.

        `example` is one microbatch of the model's arguments. A file that exists stays as it is, and its cuts are kept
        whatever else has changed: a warning says what. Prints on rank 0 what was decided.
        Raises UserError, the same on all ranks, if the model cannot be cut into that many stages, needs more memory than
        the limit, or does not fit the file.
        """
        options = self._options
        if self._layout.stages == 1 and not (options.always_profile or options.file or options.limit_bytes):
            uncut = UncutModel(self._model, example, self._comm.from_leader(lambda: self._output(example)))
            return PartitionedModel(ModelStages(uncut, (0,), (uncut.segments[0].entry, uncut.output)))
        check_same_models(self._comm, self._model, example)
        cutting = self._cut(example)
        job = self._comm.from_leader(lambda: self._job(example))  # hosts' devices may differ, answers may not
        path = options.file or default_file
        if options.file and (file := self._comm.from_leader(lambda: _read(path))):
            return self._from_file(path, file, job, cutting, example)
        if options.missing_file_error:
            raise UserError(options.missing_file_error)
        what = "option --partition" if options.file else f"{PARTITION} of the job"
        self._comm.from_leader(lambda: writable(path.parent, f"{what}: folder", "another folder"))
        segments = self._profiled(cutting)
        partition = self._comm.from_leader(lambda: self._best(segments))
        if partition is None and (finer := self._cut_at_smallest_units(cutting, example)):
            cutting, segments = finer, self._profiled(finer)
            partition = self._comm.from_leader(lambda: self._best(segments))
        if partition is None:
            self._comm.from_leader(lambda: self._refuse(segments))
        assert partition is not None
        self._comm.from_leader(lambda: partition_file.write(path, job, segments, partition))
        return self._reported(f"written to {path}", cutting, segments, partition)

    def _output(self, example: object) -> tuple[TensorSpec, ...]:
        """The tensors that the model returns, without their data."""
        try:
            return output_of(self._model, example)
        except Exception:  # without memory some models fail, each in its own way: experts look at values
            if self._build is None:
                raise
        return output_of(self._build(), example)

    def _from_file(self, path: Path, file: PartitionFile, job: Job, cutting: Cut, example: object) -> PartitionedModel:
        """The partition of a file that existed before this job."""
        if _has_unknown_units(file, cutting):
            finer = self._cut_at_smallest_units(cutting, example)
            if finer and not _has_unknown_units(file, finer):
                cutting = finer  # the file was made where only the smallest units did fit
        units = [segment.units for segment in cutting.segments]
        complete = partition_file.completed(file, units, self._options.default_stage)
        reused = partition_file.reuse(path, complete, job, units, self._layout.stages)
        for text in reused.differs:
            self._comm.say(f"warning: partition {path}: {text}")
        if reused.outdated:
            self._comm.say(
                f"warning: partition {path}: its cuts are kept, its figures are of other microbatches; fix: a "
                "--partition that does not exist yet, for cuts decided anew"
            )
        segments = file.segments if reused.profiled else self._profiled(cutting)
        partition = self._comm.from_leader(lambda: self._of_file(segments, reused.begins))
        return self._reported(f"of {path}", cutting, segments, partition)

    def _cut(self, example: object) -> Cut:
        stages, fewer = self._layout.stages, self._options.fewer_stages

        def search(model: nn.Module) -> Cut:
            if self._options.by_layers:
                return cut_at_layers(model, example)
            return cut(model, example, stages=stages, fewer=fewer)

        return cut_by_leader(self._comm, self._model, example, search, self._build)

    def _cut_at_smallest_units(self, cutting: Cut, example: object) -> Cut | None:
        """The model cut at the smallest units; None if that gives no more segments than `cutting` has."""
        if self._options.by_layers:
            return None
        stages = self._layout.stages
        try:
            finer = cut_by_leader(
                self._comm,
                self._model,
                example,
                lambda model: cut(model, example, stages=stages, finest=True),
                self._build,
            )
        except UserError:  # the model cannot be cut inside its units; the same on all ranks
            return None
        return finer if len(finer.segments) > len(cutting.segments) else None

    def _job(self, example: object) -> Job:
        device, layout = self._comm.device, self._layout
        return Job(
            model=model_hash((n, tuple(p.shape), str(p.dtype)) for n, p in self._model.named_parameters()),
            torch=torch.__version__,
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            dtype=self._options.precision,
            microbatch_shapes=tuple(tuple(tensor.shape) for tensor in leaves(example)),
            microbatches=layout.microbatches,
            schedule=layout.schedule,
            ranks=layout.grid.pp,
            optimize=self._options.optimize,
            limit_bytes=self._options.limit_bytes,
            recompute=self._options.recompute,
        )

    def _profiled(self, cutting: Cutting) -> tuple[SegmentProfile, ...]:
        """The mean over all ranks, which profile at the same time: they will compute at the same time too."""
        mine = profile(cutting, self._comm.device, precision=self._options.precision, loss=self._loss)
        return tuple(combined(self._comm.gather(mine)))

    def _costs(self, segments: Sequence[SegmentProfile]) -> CostModel:
        return CostModel(segments, self._layout.shape, self._memory)

    def _best(self, segments: Sequence[SegmentProfile]) -> Partition | None:
        return choose_stages(self._costs(segments), self._options.optimize, self._options.limit_bytes)

    def _refuse(self, segments: Sequence[SegmentProfile]) -> None:
        assert self._options.limit_bytes is not None  # every partition is within no limit
        raise does_not_fit(self._costs(segments), self._options.limit_bytes)

    def _of_file(self, segments: Sequence[SegmentProfile], begins: Begins) -> Partition:
        partition, limit = self._costs(segments).predict(begins), self._options.limit_bytes
        largest = max(partition.rank_bytes)
        if limit is not None and largest > limit:
            raise UserError(
                f"option --partition: a rank needs {largest / MIB:.1f} MiB; allowed: {limit / MIB:.1f} MiB "
                "(--memory-limit-mb); fix: move units, or a higher limit"
            )
        return partition

    def _reported(
        self, origin: str, cutting: Cut, segments: tuple[SegmentProfile, ...], partition: Partition
    ) -> PartitionedModel:
        """The result, printed on rank 0 too. `origin` says where the file is."""
        say, layout, options = self._comm.say, self._layout, self._options
        say(
            f"partition: {origin}; planned step {partition.step_s * 1e3:.1f} ms, "
            f"bubble {partition.bubble:.1%}, largest rank {max(partition.rank_bytes) / MIB:.1f} MiB"
        )
        if options.explain:
            if layout.grid.pp > 1:
                say(draw.schedule_text(layout.shape))
            say(draw.partition_text(partition, segments))
        if warning := imbalance.warning(partition, segments, cutting.refused, options.optimize):
            say(warning)
        specs = self._comm.from_leader(lambda: entries(cutting, self._comm.device, options.precision), LONG_WORK)
        return PartitionedModel(ModelStages(cutting, partition.begins, tuple(specs)), segments, partition)


def _read(path: Path) -> PartitionFile | None:
    return partition_file.read_partition(path) if path.exists() else None


def _has_unknown_units(file: PartitionFile, cutting: Cutting) -> bool:
    """Whether the file names units that are none of this cut."""
    units = {unit for segment in cutting.segments for unit in segment.units}
    return any(unit not in units for stage in file.stages for unit in stage)
