"""Where the model is cut: decided once, on all ranks of the job together."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from torch import nn

from algorun_smdistributed.signatures import independent_samples
from algorun_smdistributed.signatures.model_call import ModelCall
from algorun_smdistributed.signatures.pipelines import CutPlan, precision_of
from algorun_train.options import folders, for_parallel
from algorun_train.parallel.cut import any_module
from algorun_train.parallel.model.model_stages import ModelStages
from algorun_train.parallel.partition import profiling
from algorun_train.parallel.partition.partition_file import PARTITION
from algorun_train.parallel.planning import on_one_rank
from algorun_train.parallel.planning.model_partitioner import ModelPartitioner
from algorun_train.parallel.run.options import RunOptions
from algorun_train.ranks import generators
from algorun_train.ranks.communicator import LONG_WORK

from . import placement
from .context import Context


def planned(context: Context, module: nn.Module, call: ModelCall) -> CutPlan:
    """The plan for a call, which is rank 0's. `module` is on the CPU. UserError for a model that cannot be cut so."""
    device = context.axes.device
    with generators.kept(device):  # what the script draws next is the same on all ranks
        independent = context.comm.from_leader(lambda: independent_samples.by_mode(module, call, device), LONG_WORK)
        return CutPlan(call, _split(context, module, call), independent)


def run_options(context: Context) -> RunOptions:
    """How the stages run."""
    return for_parallel.run_options(context.options, context.layout, mean=True)


def _split(context: Context, module: nn.Module, call: ModelCall) -> ModelStages:
    comm, mp, example = context.comm, context.mp, call.example(module)
    options = replace(context.options, precision=precision_of(call, run_options(context)))
    layout = replace(context.layout, microbatch=call.samples(module) or 1)
    if mp.auto_partition:
        folder = folders.output_folder(os.environ, Path.is_dir)
        partitioner = ModelPartitioner(module, layout, for_parallel.partition_options(options, mp), comm)
        return partitioner.partition(example, folder / PARTITION).stages
    cutting = on_one_rank.cut_by_leader(
        comm,
        module,
        example,
        lambda model: any_module.cut(model, example, stages=layout.stages, finest=True, fewer=mp.fewer_stages),
    )
    begins, warning = comm.on_all(lambda: placement.placed(cutting, module, mp.default_partition, layout.stages))
    if warning and not context.partition.happened:  # once, though an evaluation before any training makes a plan, too
        comm.say(warning)
    entries = comm.from_leader(lambda: profiling.entries(cutting, context.axes.device, options.precision), LONG_WORK)
    return ModelStages(cutting, begins, tuple(entries))
