"""One rank: what its tensors really take at the peak of a step of `ddp`. `fit_memory.py SHARDS PRECISION RECOMPUTE [OPTION VALUE ..]`

The options are those of the job, with --model FOLDER. Rank 0 prints `peak=BYTES`: weights, buffers and moments as they are, and
what torch's profiler sees allocated on top of them in a step, the least of several steps: gloo holds buffers now and then.
"""

import gc
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from algorun_train.data.batch import Batch
from algorun_train.fit.step_memory import module_of
from algorun_train.jobs.folder_options import for_folder
from algorun_train.jobs.tensor_parts import checked_plan
from algorun_train.loop.data_parallel_steps import DataParallelSteps
from algorun_train.loop.losses import PER_LABEL, split_scoring
from algorun_train.loop.optimizer import build_optimizer
from algorun_train.loop.sharded_steps import ShardedSteps
from algorun_train.models.folder_config import read_folder
from algorun_train.models.folder_model import INSIDE, prepare_transformers
from algorun_train.models.tensor_plan import split_model
from algorun_train.options import option_parser
from algorun_train.options.job_options import DdpJobOptions, ModelJobOptions
from algorun_train.parallel.model import recompute
from algorun_train.parallel.model.memory import give_memory
from algorun_train.parallel.shard.layer_units import layer_list, layer_units
from algorun_train.parallel.shard.sharded_model import give_memory as give_shares_memory
from algorun_train.parallel.shard.sharded_model import local, make_mesh, shard
from algorun_train.parallel.shard.split_logits import SplitLogits
from algorun_train.parallel.shard.tensor_gradients import TensorGradients
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world
from tests.train.programs.measured import allocated, measured

STEPS = 6


def peak(comm: Communicator, shards: int, options: DdpJobOptions) -> int:
    prepare_transformers()
    folder = read_folder(Path(options.model or ""), "option --model")
    options = for_folder(options, folder)
    model = module_of(folder, options)
    if options.recompute:
        for layer in layer_list(model):
            recompute.mark(layer, preserve_rng_state=True)
        recompute.in_place(model)
    mesh = make_mesh(comm.device, comm.rank, comm.size, shards, options.tp) if shards * options.tp > 1 else None
    axis = mesh.tensor if mesh else None
    gradients, scoring = None, PER_LABEL
    if mesh and axis:  # as jobs/ddp_job.py
        parts = split_model(model.model, checked_plan(folder, None, axis, comm), axis).inside(INSIDE)
        gradients = TensorGradients(dict(model.named_parameters()), mesh, parts)
        scoring = split_scoring(SplitLogits(axis, parts.words)) if parts.words else PER_LABEL
    if mesh and shards > 1:
        shard(model, layer_units(model), mesh, torch.bfloat16 if options.precision == "bf16" else None)
        give_shares_memory(model, comm.device)
    else:
        give_memory([model], comm.device)
    with torch.no_grad():
        for each in model.parameters():
            local(each).normal_(0, 0.02)
    kind = ShardedSteps if shards > 1 else DataParallelSteps
    stepper = kind(model, build_optimizer(options, model.parameters()), comm, options, gradients, scoring)
    batches = [batch(options, folder.images.side if folder.images else 0, options.batch_size)] * options.accumulation
    stepper.train()
    for number in (1, 2):  # the moments come with the first step, DDP's final buckets before the second
        stepper.step(batches, 1, 1e-3, number)
    states = (value for each in stepper.optimizer.state.values() for value in each.values())
    held = sum(each.inputs.nbytes + each.labels.nbytes for each in batches[:1])
    held += sum(local(each.detach()).nbytes for each in (*model.parameters(), *model.buffers(), *states))
    if isinstance(stepper._wrapped, DistributedDataParallel):  # its buckets hold the gradients all the time
        held += sum(each.nbytes for each in model.parameters() if each.requires_grad)
    peaks = []
    for number in range(STEPS):
        gc.collect()
        with measured() as profiled:
            stepper.step(batches, 1, 1e-3, 3 + number)
        peaks.append(allocated(profiled, set())[0])
    return held + min(peaks)


def batch(options: ModelJobOptions, side: int, samples: int) -> Batch:
    shape = (samples, 3, side, side) if side else (samples, options.context)
    inputs = torch.zeros(shape, dtype=torch.float32 if side else torch.int64)
    labels = torch.zeros(shape[:1] if side else shape, dtype=torch.int64)
    return Batch(inputs, labels, samples)


if __name__ == "__main__":
    shard_count, precision, again, *words = sys.argv[1:]
    asked = replace(option_parser.read_options(DdpJobOptions, words), precision=precision, recompute=again == "true")
    with joined(read_world(os.environ)) as joined_ranks:
        joined_ranks.say(f"peak={peak(joined_ranks, int(shard_count), asked)}")
