"""The partition of a Keras model as the file partition.json. The same job, started again, uses it and measures nothing.

A restarted attempt finds the file in the job's output folder, a resumed job in the folder of its checkpoints.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from algorun_train.common import files
from algorun_train.parallel.partition import partition_file
from algorun_train.parallel.partition.costs import Partition, SegmentProfile
from algorun_train.parallel.partition.partition_file import PARTITION, Job
from algorun_train.parallel.planning.model_hash import model_hash
from algorun_train.parallel.schedules import PipelineShape

from .partitioning import Segments

Variable = Any  # TensorFlow's objects have no types for mypy


def same_job(variables: Sequence[Variable], specs: Sequence[tf.TensorSpec], shape: PipelineShape, optimize: str) -> Job:
    """What decides on a partition. `variables` are those of the model, `specs` the tensors of one microbatch."""
    return Job(
        model=model_hash((each.name, tuple(each.shape), each.dtype.name) for each in variables),
        torch=f"TensorFlow {tf.__version__}",
        device=tf.config.list_logical_devices()[-1].device_type.lower(),
        dtype=variables[0].dtype.name,
        microbatch_shapes=tuple(tuple(spec.shape) for spec in specs),
        microbatches=shape.microbatches,
        schedule=shape.schedule,
        ranks=shape.ranks,
        optimize=optimize,
        limit_bytes=None,
    )


@dataclass(slots=True)
class SavedPartition:
    """The files of a job's partition. On rank 0."""

    own: Path
    """in the output folder: the partition that the job has"""
    others: list[Path]
    """folders of the script's checkpoints, where an earlier job may have left its own"""
    is_used: bool = False
    """whether the file in the output folder is this job's, and not an older one"""
    seconds: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """of each stage's forward and backward pass of one microbatch, as measured; None: not known"""

    def find(self, job: Job, found: Segments) -> tuple[int, ...] | None:
        """The group with which each stage begins, of the first file that was made for `job`; None if there is no such file.

        Prints what it uses, and what it does not. Raises UserError for a file that cannot be read, or whose stages, edited by
        hand, are not the model's layers in their order.
        """
        units = [[layer.name for layer in group] for group in found.groups]
        for path in (self.own, *(folder / PARTITION for folder in self.others)):
            if not path.exists():
                continue
            file = partition_file.read_partition(path)
            differs = ["another model"] if file.job.model != job.model else partition_file.differences(file.job, job)
            if differs:
                print(f"smp: partition {path} is of another job, and not used: {', '.join(differs)}", flush=True)
                continue
            reused = partition_file.reuse(path, file, job, units, job.ranks)
            print(f"smp: partition of {path}", flush=True)
            if path != self.own:
                self._check_folder()
                copy(path, self.own)
            self.is_used = True
            if reused.profiled:
                self.seconds = _seconds(file.segments, reused.begins)
            return reused.begins
        return None

    def write(self, job: Job, profiles: Iterable[SegmentProfile], partition: Partition) -> None:
        """Writes what was decided and measured, in the place of an older file. UserError if that fails."""
        self._check_folder()
        self.seconds = partition.forward_s, partition.backward_s
        partition_file.write(self.own, job, tuple(profiles), partition)
        self.is_used = True
        print(f"smp: partition written to {self.own}", flush=True)

    def keep(self, folder: Path) -> None:
        """Copies this job's file into the folder of checkpoints, unless it is there."""
        path = folder / PARTITION
        if self.is_used and not (path.exists() and path.read_bytes() == self.own.read_bytes()):
            copy(self.own, path)

    def _check_folder(self) -> None:
        files.writable(self.own.parent, f"{PARTITION} of the job: folder", "another folder")


def _seconds(
    segments: Sequence[SegmentProfile], begins: tuple[int, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    stages = [segments[begin:end] for begin, end in itertools.pairwise((*begins, len(segments)))]
    return (
        tuple(sum(each.forward_s for each in stage) for stage in stages),
        tuple(sum(each.backward_s for each in stage) for stage in stages),
    )


def copy(source: Path, target: Path) -> None:
    """Copies a small file; the copy appears complete or not at all. Raises OSError."""
    files.write(target, lambda file: file.write(source.read_bytes()))
