"""A pipeline for a user's own model; scripts reach it as algorun.pipeline."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .errors import UserError
from .files import writable
from .options.folders import output_folder
from .options.job_options import PipelineJobOptions
from .options.mp_parameters import MpParameters
from .options.option_parser import from_values
from .options.pipeline_layout import Layout, lay_out
from .parallel.partition.decide import PARTITION, Decider, Split
from .parallel.partition.profiling import PRECISIONS
from .parallel.run.pipeline import Pipeline
from .parallel.run.process_groups import Axes, join
from .parallel.run.torch_schedules import Loss
from .parallel.trees import arguments, in_order, leaves
from .ranks.communicator import Communicator
from .ranks.generators import kept
from .ranks.join import enter
from .ranks.world import read_world


def pipeline(
    model: nn.Module,
    example: Any,
    loss: Loss,
    *,
    microbatches: int,
    target: torch.Tensor | None = None,
    partition: str | Path | None = None,
    folder: str | Path | None = None,
    by_layers: bool = False,
    **options: Any,
) -> Pipeline:
    """Cuts `model`, decides which rank computes what, and returns this rank's part. To be called on all ranks.

    `example` is one microbatch of the model's input: a tensor, a tuple of arguments or a dict of named ones, in which
    every tensor has a row per sample. A batch for `step` has the same form and `microbatches` times the rows.
    `loss(output, target)` is the mean over a microbatch; given an example `target`, its time and memory count for the
    last stage. `options`
    are those of the entrypoint: pp, chunks, schedule, placement, optimize, memory_limit_mb, precision, recompute,
    optimizer (for the memory model). The decision is written to partition.json in `folder` (the job's output folder),
    or taken from the file `partition` where that exists. `by_layers` cuts between the layers of the model's longest
    nn.ModuleList or nn.Sequential alone, as language models are usually split, instead of wherever it can be cut. Says on
    rank 0 what it does.

    Joins torch.distributed unless that is done; a process group for CPU tensors has to be among its backends. Raises
    UserError, equal on all ranks, where the model cannot be cut, or options do not fit it or the number of ranks.
    """
    example = in_order(example)  # as batches will be
    comm = enter(read_world(os.environ))
    given = {"batch_size": _rows(example) * microbatches, "microbatches": microbatches, "partition": partition}
    config = from_values(PipelineJobOptions, given | options, "algorun.pipeline")
    layout = lay_out(config, MpParameters(), comm.size, torch.__version__)
    output = output_folder(os.environ, Path.is_dir) if folder is None else Path(folder)
    comm.from_leader(lambda: writable(output, "folder", "another one as `folder`"))
    with kept(comm.device):  # what the script draws next is the same on all ranks
        counted = None if target is None else with_target(loss, target, comm)
        decider = Decider(config, MpParameters(), layout, model, comm, comm.say, counted, by_layers)
        split = decider.split(example, output / PARTITION)
    return assemble(config, layout, split, join(layout.grid, comm.rank, comm.device), loss)


def assemble(
    config: PipelineJobOptions,
    layout: Layout,
    split: Split,
    axes: Axes,
    loss: Loss | None = None,
    mean: bool = False,
    beside: Pipeline | None = None,
) -> Pipeline:
    """This rank's part of a model that is split. On all ranks; `beside` another one of its pipeline only."""
    return Pipeline(
        split.cutting,
        split.begins,
        axes,
        loss,
        microbatches=layout.microbatches,
        schedule=layout.schedule,
        autocast=PRECISIONS[config.precision],
        recompute=config.recompute,
        entries=split.entries,
        mean=mean,
        beside=beside,
    )


def _rows(example: Any) -> int:
    """Samples of an example. UserError where its tensors have no first axis, or different ones."""
    shapes = [list(tensor.shape) for tensor in leaves(arguments(example))]
    rows = {shape[0] if shape else 0 for shape in shapes}
    if len(rows) != 1 or 0 in rows:
        raise UserError(
            f"algorun.pipeline: an example with tensors of shapes {shapes}; allowed: one or more tensors, all with the same "
            "number of rows, one per sample; fix: make what all samples share a buffer of the model"
        )
    return rows.pop()


def with_target(loss: Loss, target: torch.Tensor, comm: Communicator) -> Callable[[Any], torch.Tensor]:
    """The loss of a microbatch with this target, for a profile."""
    there = target.to(comm.device)
    return lambda output: loss(output, there)
