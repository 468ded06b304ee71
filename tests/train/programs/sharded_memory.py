"""One rank of four: what a training step of a small Llama holds at its peak. `sharded_memory.py LAYOUT ..`

A layout is a number of shards, or `stages`: two stages, each sharded over two pipelines.

Prints bytes by kind as torch's memory trackers count tensors on the CPU (gloo's buffers are theirs: NCCL has its own). Kinds
are those of the tracker; `weights` are the model's, `unit` the largest unit's, `saved` what a forward pass keeps for its
backward pass in one process without sharding.
"""

import gc
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.fsdp import FSDPModule
from transformers import LlamaConfig, LlamaForCausalLM

from algorun_train.data.batch import Batch
from algorun_train.loop.data_parallel_steps import DataParallelSteps
from algorun_train.loop.losses import PER_LABEL, sum_of_losses
from algorun_train.loop.optimizer import build_optimizer
from algorun_train.loop.pipeline_steps import PipelineSteps
from algorun_train.loop.sharded_steps import ShardedSteps
from algorun_train.models.folder_model import LanguageModel
from algorun_train.options.for_parallel import partition_options, run_options
from algorun_train.options.job_options import DdpJobOptions, PipelineJobOptions
from algorun_train.options.mp_parameters import MpParameters
from algorun_train.options.pipeline_layout import lay_out
from algorun_train.parallel.planning.model_partitioner import ModelPartitioner
from algorun_train.parallel.run import process_groups
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.parallel.shard.layer_units import layer_units
from algorun_train.parallel.shard.sharded_model import local, make_mesh, shard
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world
from tests.train.programs.measured import allocated, measured

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "vocab_size": 304,
}
TOKENS = torch.zeros(2, 32, dtype=torch.int64)


def saved_bytes(model: LanguageModel) -> int:
    """The bytes that a forward pass keeps for the backward pass, without weights."""
    kept = {p.untyped_storage().data_ptr(): 0 for p in model.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept.setdefault(storage.data_ptr(), storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = sum_of_losses(model(TOKENS), TOKENS)
    del loss
    return sum(kept.values())


def measure(comm: Communicator, shards: int) -> dict[str, int]:
    torch.manual_seed(0)
    model, options = LanguageModel(LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2))), DdpJobOptions()
    units = layer_units(model)
    found = {"weights": bytes_of(model), "unit": max(map(bytes_of, units)), "saved": saved_bytes(model)}
    if shards > 1:
        shard(model, units, make_mesh(comm.device, comm.rank, comm.size, shards), None)
    kind = ShardedSteps if shards > 1 else DataParallelSteps
    stepper = kind(model, build_optimizer(options, model.parameters()), comm, options)
    batches = [Batch(TOKENS, TOKENS.clone(), 2)]
    own = list(model.parameters())
    stepper.optimizer.register_step_pre_hook(lambda *_: found.update(held_gradients=held(p.grad for p in own)))
    stepper.train()
    stepper.step(batches, TOKENS.numel() * comm.size, 1e-3, 1)  # the moments come with the first step
    if shards > 1:
        tracker = FSDPMemTracker(model, stepper.optimizer)
        tracker.track_inputs((TOKENS,))
    else:
        tracker = MemTracker()
        tracker.track_external(model, stepper.optimizer)
    with tracker:
        stepper.step(batches, TOKENS.numel() * comm.size, 1e-3, 2)
    peak = tracker.get_tracker_snapshot("peak")[comm.device]
    found["held_weights"] = held(own)
    found["held_moments"] = held(v for p in own for v in stepper.optimizer.state[p].values() if v.dim())
    return found | {str(kind).rpartition(".")[2].lower(): value for kind, value in peak.items()}


def held(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes that are allocated on this rank for these tensors; gradients of a unit or a bucket share their memory."""
    own = [local(each.detach()) for each in tensors]
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in own}.values())


def bytes_of(module: torch.nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def measure_stages(comm: Communicator) -> dict[str, int]:
    """Of rank 0, which has the first stage. `gradients` are those of a whole step, before the optimizer's. `peak` is what torch
    has allocated in a step on top of shares and moments, in the least of three steps: gloo holds buffers now and then. `saved`
    is what two of the four microbatches keep in a stage: so many are in flight there."""
    torch.manual_seed(0)
    model = LanguageModel(LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2)))
    options = PipelineJobOptions(pp=2, shard="2", batch_size=4, microbatches=4, optimize="memory")
    tokens = TOKENS.repeat(2, 1)
    layout = lay_out(options, MpParameters(), comm.size)
    partitioner = ModelPartitioner(model, layout, partition_options(options, MpParameters()), comm)
    found = partitioner.partition(TOKENS[:1], Path(tempfile.mkdtemp()) / "partition.json").stages
    axes = process_groups.join(layout.grid, comm.rank, comm.device, layout.shards)
    stage = found.cutting.stage(found.begins[axes.pp_rank], found.ends[axes.pp_rank])
    row = {"weights": bytes_of(stage), "saved": saved_bytes(model) // 2, "unit": max(map(bytes_of, layer_units(model)))}
    pipeline = Pipeline(found, axes, run_options(options, layout), PER_LABEL.loss)
    units = [unit for unit in pipeline.stages[axes.pp_rank].modules() if isinstance(unit, FSDPModule)]
    optimizer = build_optimizer(options, pipeline.parameters())
    stepper = PipelineSteps(pipeline, optimizer, comm, options, PER_LABEL, random=False)
    stepper.train()
    stepper.step([Batch(tokens, tokens.clone(), 4)], tokens.numel() * 2, 1e-3, 1)
    row["sharded_param"] = sum(local(each).nbytes for each in pipeline.parameters())
    row["opt"] = sum(local(value).nbytes for each in optimizer.state.values() for value in each.values() if value.dim())
    pipeline.step(tokens, tokens.clone())
    row["gradients"] = sum(local(each.grad).nbytes for each in pipeline.parameters())
    optimizer.zero_grad()
    peaks = []
    for number in range(3):
        gc.collect()
        with measured() as profiled:
            stepper.step([Batch(tokens, tokens.clone(), 4)], tokens.numel() * 2, 1e-3, 2 + number)
        peaks.append(allocated(profiled, set())[0])
        optimizer.zero_grad()
    row["peak"] = min(peaks)
    return row | {"units": len(units)}


with joined(read_world(os.environ)) as comm:
    for words in sys.argv[1:]:
        row = measure_stages(comm) if words == "stages" else measure(comm, int(words))
        comm.say(f"{words} " + " ".join(f"{key}={value}" for key, value in row.items()))
