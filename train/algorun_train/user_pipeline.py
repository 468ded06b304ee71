"""A pipeline for a user's own model; scripts call it as `algorun.pipeline.pipeline`.

`Any` on this page: arguments and outputs of the user's model, and values of options before they are checked.
"""

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
from .options.for_parallel import partition_options, run_options
from .options.job_options import PipelineJobOptions
from .options.mp_parameters import MpParameters
from .options.option_parser import from_values
from .options.pipeline_layout import lay_out
from .parallel.model_partitioner import PARTITION, ModelPartitioner
from .parallel.run.pipeline import Pipeline
from .parallel.run.process_groups import join
from .parallel.run.torch_schedules import Loss
from .parallel.trees import arguments, in_order, leaves
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
    """Cuts `model`, decides which rank computes which layers, and returns this rank's stages. Call it on all ranks.

    Args:
        model: equal on all ranks, weights included. On the CPU, or on this rank's device.
        example: one microbatch of the model's input: a tensor, a tuple of arguments or a dictionary of named ones, in
            which every tensor is [samples, ..]. A batch for `step` is nested like it and has `microbatches` x the rows.
        loss: `loss(output, target)` is the mean over a microbatch, a scalar.
        microbatches: per step.
        target: an example of the second argument of `loss`: then the time and memory of the loss count for the last
            stage.
        partition: a partition file to use; written where it does not exist.
        folder: where partition.json is written without `partition`; by default the job's output folder.
        by_layers: cut only between the layers of the model's longest nn.ModuleList or nn.Sequential, as language models
            are usually split. By default the model is cut wherever it can be.
        options: those of the entrypoint: pp, chunks, schedule, placement, optimize, memory_limit_mb, precision,
            recompute, optimizer (for the prediction of memory).

    Joins torch.distributed unless the script has; then one of its backends must be for CPU tensors. Prints on rank 0 what
    was decided.

    Raises:
        UserError: the same on all ranks, if the model cannot be cut, or if options do not fit it or the number of ranks.
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


def _rows(example: Any) -> int:
    """The samples of an example. Raises UserError if its tensors have no first axis, or different numbers of rows."""
    shapes = [list(tensor.shape) for tensor in leaves(arguments(example))]
    rows = {shape[0] if shape else 0 for shape in shapes}
    if len(rows) != 1 or 0 in rows:
        raise UserError(
            f"algorun.pipeline: an example with tensors of shapes {shapes}; allowed: one or more tensors, all with the same "
            "number of rows, one per sample; fix: make what all samples share a buffer of the model"
        )
    return rows.pop()


def with_target(loss: Loss, target: torch.Tensor, device: torch.device) -> Callable[[Any], torch.Tensor]:
    """The loss of a microbatch with this target, moved to `device`, as a function of the model's output."""
    moved = target.to(device)
    return lambda output: loss(output, moved)
