"""A pipeline for a user's own model. Scripts call it as `algorun.pipeline.pipeline`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.common.files import writable
from algorun_train.options.folders import output_folder
from algorun_train.options.for_parallel import partition_options, run_options
from algorun_train.options.job_options import PipelineJobOptions
from algorun_train.options.mp_parameters import MpParameters
from algorun_train.options.option_parser import from_values
from algorun_train.options.pipeline_layout import lay_out
from algorun_train.parallel.model.trees import arguments, in_order, leaves
from algorun_train.parallel.partition.partition_file import PARTITION
from algorun_train.parallel.planning.model_partitioner import ModelPartitioner
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.parallel.run.process_groups import join
from algorun_train.parallel.run.torch_schedules import Loss
from algorun_train.ranks.generators import kept
from algorun_train.ranks.join import enter
from algorun_train.ranks.world import read_world


def pipeline(
    model: nn.Module,
    example: object,
    loss: Loss,
    *,
    microbatches: int,
    target: torch.Tensor | None = None,
    partition: str | Path | None = None,
    folder: str | Path | None = None,
    by_layers: bool = False,
    **options: object,
) -> Pipeline:
    """Cuts `model`, decides which rank computes which layers, and returns this rank's stages. Call it on all ranks.

    Args:
        model: equal on all ranks, weights included. On the CPU, or on this rank's device.
        example: one microbatch of the model's input: a tensor, a tuple of arguments or a dictionary of named ones, in
            which every tensor is [samples, ..]. A batch for `step` is nested like it and has `microbatches` x the rows.
        loss: `loss(output, target)` is the mean over a microbatch, a scalar.
        microbatches: the number of microbatches per step.
        target: an example of the second argument of `loss`. If it is given, the time and memory of the loss count with
            the last stage.
        partition: the partition file to use. It is written if it does not exist.
        folder: the folder for partition.json if `partition` is not given; by default the job's output folder.
        by_layers: cut only between the layers of the model's longest nn.ModuleList or nn.Sequential, as language models
            are usually split. By default the model is cut at every place where this is possible.
        options: options of the entrypoint `pipeline`: pp (ranks of a pipeline), chunks (stages of a rank), schedule,
            placement, optimize, memory_limit_mb, precision, recompute, optimizer (only to predict the memory).
            docs/pipeline.md has their values.

    Joins torch.distributed unless the script has joined it; then it needs a backend for CPU tensors. Rank 0 prints the
    decisions.

    Raises:
        UserError: the same on all ranks, if the model cannot be cut, or if options do not fit the model or the ranks.
    """
    example = in_order(example)  # as `step` orders its batches
    comm = enter(read_world(os.environ))
    given = {"batch_size": _rows(example) * microbatches, "microbatches": microbatches, "partition": partition}
    config = from_values(PipelineJobOptions, given | options, "algorun.pipeline")
    layout = lay_out(config, MpParameters(), comm.size, torch.__version__)
    output = output_folder(os.environ, Path.is_dir) if folder is None else Path(folder)
    comm.from_leader(lambda: writable(output, "folder", "another one as `folder`"))
    with kept(comm.device):  # the script's next random numbers stay the same on all ranks
        counted = None if target is None else with_target(loss, target, comm.device)
        wanted = partition_options(config, MpParameters(), by_layers)
        found = ModelPartitioner(model, layout, wanted, comm, counted).partition(example, output / PARTITION)
    axes = join(layout.grid, comm.rank, comm.device)
    return Pipeline(found.stages, axes, run_options(config, layout), loss)


def _rows(example: object) -> int:
    """The number of samples in an example. Raises UserError if its tensors have no first axis, or different numbers of rows."""
    shapes = [list(tensor.shape) for tensor in leaves(arguments(example))]
    rows = {shape[0] if shape else 0 for shape in shapes}
    if len(rows) != 1 or 0 in rows:
        raise UserError(
            f"algorun.pipeline: an example with tensors of shapes {shapes}; allowed: one or more tensors, all with the same "
            "number of rows, one per sample; fix: make what all samples share a buffer of the model"
        )
    return rows.pop()


def with_target(
    loss: Loss, target: torch.Tensor, device: torch.device
) -> Callable[[Any], torch.Tensor]:  # Any: the model's output, of the user's own type
    """The loss as a function of the model's output alone: the target is fixed, and moved to `device`."""
    moved = target.to(device)
    return lambda output: loss(output, moved)
