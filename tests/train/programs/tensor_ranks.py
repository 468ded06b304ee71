"""Steps of a Hugging Face folder's model in tensor groups, with its dropout: `tensor_ranks.py FOLDER OUT TP SHARDS [PP]`.

With PP the model is in as many stages, of one tensor group each.

Each rank writes OUT.RANK, as JSON: the bytes of its weights, gradients and moments, the words of its logits, the number of matrix products
on DTensors, a checksum of each weight that all ranks of a
group hold, and a checksum of the numbers that its generator draws next.
"""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from algorun_train.data.batch import Batch
from algorun_train.jobs.chosen_model import FolderJobModel
from algorun_train.loop.data_parallel_steps import DataParallelSteps
from algorun_train.loop.losses import split_scoring
from algorun_train.loop.optimizer import build_optimizer
from algorun_train.loop.pipeline_steps import PipelineSteps
from algorun_train.loop.sharded_steps import ShardedSteps
from algorun_train.models.folder_config import ModelFolder, read_folder
from algorun_train.models.folder_model import build_model, load_weights, prepare_transformers
from algorun_train.options.for_parallel import partition_options, run_options
from algorun_train.options.job_options import DdpJobOptions, PipelineJobOptions
from algorun_train.options.mp_parameters import MpParameters
from algorun_train.options.pipeline_layout import lay_out
from algorun_train.parallel.model.memory import give_memory
from algorun_train.parallel.planning.model_partitioner import ModelPartitioner
from algorun_train.parallel.run import process_groups
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.parallel.shard.layer_units import layer_units
from algorun_train.parallel.shard.sharded_model import give_memory as give_shares_memory
from algorun_train.parallel.shard.sharded_model import local, make_mesh, shard
from algorun_train.parallel.shard.split_logits import SplitLogits
from algorun_train.parallel.shard.tensor_gradients import TensorGradients
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world

path, out, (tp, shards, *stages) = Path(sys.argv[1]), sys.argv[2], map(int, sys.argv[3:])
STEPS, BATCH, TOKENS = 3, 2, 16
Made = tuple[DataParallelSteps | PipelineSteps, dict[str, nn.Parameter], Collection[str]]
"""a stepper, the weights of this rank, and the names of those of which it has a part"""


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()


def bytes_of(tensors: list[torch.Tensor]) -> int:
    return sum(local(each).numel() * each.element_size() for each in tensors)


def in_groups(comm: Communicator, folder: ModelFolder) -> Made:
    options = DdpJobOptions(tp=tp, shard=str(shards), clip_norm=0.1)
    mesh = make_mesh(comm.device, comm.rank, comm.size, shards, tp)
    assert mesh.tensor
    inner = FolderJobModel(folder, None, 1, on_meta=True)
    model = inner.module
    parts = inner.split(mesh.tensor, comm)
    if shards > 1:
        shard(model, layer_units(model), mesh, None)
        give_shares_memory(model, comm.device)
    else:
        give_memory([model], comm.device)
    inner.fill_shares(comm)
    weights = dict(model.named_parameters())
    optimizer = build_optimizer(options, weights.values())
    gradients = TensorGradients(weights, mesh, parts)
    assert parts.words
    scoring = split_scoring(SplitLogits(mesh.tensor, parts.words))
    kind = ShardedSteps if shards > 1 else DataParallelSteps
    return kind(model, optimizer, comm, options, gradients, scoring), weights, parts.splits


def in_stages(comm: Communicator, folder: ModelFolder, pp: int) -> Made:
    options = PipelineJobOptions(tp=tp, pp=pp, shard=str(shards), clip_norm=0.1, batch_size=BATCH, microbatches=BATCH)
    layout = lay_out(options, MpParameters(), comm.size)
    axes = process_groups.join(layout.grid, comm.rank, comm.device, shards)
    inner = FolderJobModel(folder, None, 1, on_meta=True)
    assert axes.tensor
    parts = inner.split_stages(axes.tensor, comm)

    def whole() -> nn.Module:
        model = build_model(folder, None, 1)
        load_weights(model, folder, None)
        return model

    wanted = partition_options(options, MpParameters())
    partitioner = ModelPartitioner(inner.module, layout, wanted, comm, build=whole, held=parts.held)
    example = torch.zeros(1, TOKENS, dtype=torch.int64)
    found = partitioner.partition(example, Path(tempfile.mkdtemp()) / "partition.json").stages
    assert parts.words
    scoring = split_scoring(SplitLogits(axes.tensor, parts.words))
    pipeline = Pipeline(found, axes, run_options(options, layout), scoring.loss, split=parts.split)
    inner.fill_stages(pipeline.weights.tensors(), comm, pipeline.splits)
    weights = dict(pipeline.named_parameters())
    optimizer = build_optimizer(options, weights.values())
    assert pipeline.splits
    return PipelineSteps(pipeline, optimizer, comm, options, scoring, random=True), weights, pipeline.splits.by_name


def logits_of(stepper: DataParallelSteps | PipelineSteps) -> list[int]:
    """A list that gets the number of words of which this rank computes logits, at each call of the head."""
    roots = list(stepper.pipeline.stages.values()) if isinstance(stepper, PipelineSteps) else [stepper.model]
    widths: list[int] = []
    for name, module in (each for root in roots for each in root.named_modules()):
        if name.endswith("lm_head"):
            module.register_forward_hook(lambda _module, _inputs, output: widths.append(output.shape[-1]))
    return widths


def products_on_dtensors() -> list[torch.Tensor]:
    """A list that gets the input of each linear module that computes on a DTensor."""
    found: list[torch.Tensor] = []
    linear = functional.linear

    def seen(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        found.extend(each for each in (inputs,) if isinstance(each, DTensor) or isinstance(weight, DTensor))
        return linear(inputs, weight, bias)

    functional.linear = seen
    return found


def train(comm: Communicator) -> None:
    prepare_transformers()
    folder = read_folder(path, "option --model")
    stepper, weights, split = in_stages(comm, folder, *stages) if stages else in_groups(comm, folder)
    seen: list[int] = []
    optimizer = stepper.optimizer
    optimizer.register_step_pre_hook(
        lambda *_: seen.append(bytes_of([each.grad for each in weights.values() if each.grad is not None]))
    )
    widths, products = logits_of(stepper), products_on_dtensors()
    replica, replicas = comm.rank // tp // (stages or [1])[0], comm.size // tp // (stages or [1])[0]
    random = torch.Generator().manual_seed(replica)
    stepper.train()
    for number in range(1, STEPS + 1):
        tokens = torch.randint(300, (BATCH, TOKENS), generator=random)
        stepper.step([Batch(tokens, tokens, BATCH)], BATCH * TOKENS * replicas, 1e-2, number)
    moments = [value for weight in weights.values() for value in optimizer.state[weight].values() if value.dim()]
    found = {
        "weights": bytes_of(list(weights.values())),
        "gradients": seen[-1],
        "moments": bytes_of(moments),
        "logits": max(widths, default=0),
        "on DTensors": len(products),
        "whole": {name: digest(local(weight)) for name, weight in weights.items() if name not in split},
        "next": digest(torch.rand(8)),
    }
    Path(f"{out}.{comm.rank}").write_text(json.dumps(found))


with joined(read_world(os.environ)) as comm:
    train(comm)
