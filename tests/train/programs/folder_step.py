"""The first step of a Hugging Face folder's model: `folder_step.py FOLDER OUT PP,SHARDS,PRECISION[,TP] ..`. Rank 0 writes losses and gradients.

FOLDER may be several, with `:` between; then what rank 0 writes is {name of the folder: what it writes for one}.
Eight samples, shared by the ranks, or by pipelines of PP ranks (0: no pipeline). SHARDS ranks, or pipelines, share the weights.
With TP that many ranks compute each layer together, and SHARDS such groups share the weights. PRECISION is float64, float32 or bf16.
Where a step is refused, what rank 0 writes is {"refused": the error's text}. Some labels of some samples do not count.
"""

import contextlib
import functools
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from algorun_train.checkpoint import collect
from algorun_train.common.errors import UserError
from algorun_train.data.batch import IGNORED, Batch
from algorun_train.jobs.chosen_model import FolderJobModel
from algorun_train.jobs.ddp_job import send_weights
from algorun_train.loop.data_parallel_steps import DataParallelSteps
from algorun_train.loop.losses import PER_LABEL, Scoring, split_scoring
from algorun_train.loop.pipeline_steps import PipelineSteps
from algorun_train.loop.sharded_steps import ShardedSteps
from algorun_train.models.folder_config import read_folder
from algorun_train.models.folder_model import FolderModule, build_model, load_weights, prepare_transformers
from algorun_train.options.for_parallel import partition_options, run_options
from algorun_train.options.job_options import DdpJobOptions, PipelineJobOptions
from algorun_train.options.mp_parameters import MpParameters
from algorun_train.options.pipeline_layout import lay_out
from algorun_train.parallel.model.memory import give_memory
from algorun_train.parallel.planning.model_partitioner import ModelPartitioner
from algorun_train.parallel.run import process_groups
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.parallel.shard.layer_units import layer_units
from algorun_train.parallel.shard.sharded_model import ShardMesh, Splits, gathered_state, make_mesh, shard
from algorun_train.parallel.shard.sharded_model import give_memory as give_shares_memory
from algorun_train.parallel.shard.split import TensorParts
from algorun_train.parallel.shard.split_logits import SplitLogits
from algorun_train.parallel.shard.tensor_gradients import TensorGradients
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world

paths, out = [Path(each) for each in sys.argv[1].split(":")], Path(sys.argv[2])
SAMPLES = 8
TOKENS = 300  # or the model's, if it has fewer
prepare_transformers()
folder = read_folder(paths[0], "option --model")
Steps = DataParallelSteps | PipelineSteps
Named = dict[str, torch.Tensor]


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(5)
    if folder.images:
        images = torch.rand(SAMPLES, 3, 16, 16, generator=random, dtype=torch.float64) * 2 - 1
        return images.to(torch.get_default_dtype()), torch.randint(10, (SAMPLES,), generator=random)
    tokens = min(TOKENS, int(folder.config.get("vocab_size", TOKENS)))
    inputs, labels = (torch.randint(tokens, (SAMPLES, 12), generator=random) for _ in range(2))
    labels[0, :7] = labels[5, 3:] = IGNORED
    return inputs, labels


def sgd(weights: Named) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": list(weights.values())}], 1.0)  # a stage of a dropout has none


def in_stages(
    model: torch.nn.Module, pp: int, shards: int, half: str, comm: Communicator
) -> tuple[PipelineSteps, Named, ShardMesh | None, int]:
    """The stepper of this rank's stages, their weights, how they are shared, and the number of the pipeline."""
    batch = SAMPLES * pp // comm.size
    options = PipelineJobOptions(pp=pp, shard=str(shards), batch_size=batch, microbatches=batch, precision=half)
    layout = lay_out(options, MpParameters(), comm.size)
    partitioner = ModelPartitioner(model, layout, partition_options(options, MpParameters()), comm)
    stages = partitioner.partition(samples()[0][:1], Path(tempfile.mkdtemp()) / "partition.json").stages
    axes = process_groups.join(layout.grid, comm.rank, comm.device, shards)
    pipeline = Pipeline(stages, axes, run_options(options, layout), PER_LABEL.loss)
    weights = dict(pipeline.named_parameters())
    stepper = PipelineSteps(pipeline, sgd(weights), comm, options, PER_LABEL, random=False)
    return stepper, weights, axes.mesh, layout.grid.place(comm.rank)[0]


def in_split_stages(
    pp: int, tp: int, shards: int, half: str, classes: list[str] | None, comm: Communicator
) -> tuple[PipelineSteps, Named, ShardMesh | None, Splits | None, int]:
    """As `in_stages`, with `tp` ranks that compute each stage; also how they share its weights."""
    batch = SAMPLES * pp * tp // comm.size
    options = PipelineJobOptions(pp=pp, tp=tp, shard=str(shards), batch_size=batch, microbatches=batch, precision=half)
    layout = lay_out(options, MpParameters(), comm.size)
    axes = process_groups.join(layout.grid, comm.rank, comm.device, shards)
    assert axes.tensor
    with in_float32():
        inner = FolderJobModel(folder, classes, 1, on_meta=True)
    model = converted(inner.module)
    parts = inner.split_stages(axes.tensor, comm)
    wanted, build = partition_options(options, MpParameters()), functools.partial(whole_model, classes, comm)
    partitioner = ModelPartitioner(model, layout, wanted, comm, build=build, held=parts.held)
    stages = partitioner.partition(samples()[0][:1], Path(tempfile.mkdtemp()) / "partition.json").stages
    scoring = split_scoring(SplitLogits(axes.tensor, parts.words)) if parts.words else PER_LABEL
    pipeline = Pipeline(stages, axes, run_options(options, layout), scoring.loss, split=parts.split)
    inner.fill_stages(pipeline.weights.tensors(), comm, pipeline.splits)
    weights = dict(pipeline.named_parameters())
    stepper = PipelineSteps(pipeline, sgd(weights), comm, options, scoring, random=False)
    return stepper, weights, axes.mesh, pipeline.splits, layout.grid.place(comm.rank)[0]


def whole_model(classes: list[str] | None, comm: Communicator) -> torch.nn.Module:
    """The model with the folder's weights on rank 0, and others on each other rank."""
    with in_float32():
        model = build_model(folder, classes, comm.rank)
    if comm.is_leader:
        load_weights(model, folder, classes)
    return converted(model)


@contextlib.contextmanager
def in_float32() -> Iterator[None]:
    """To build a model is to call it once, and torch has no product of all experts in float64."""
    kind = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(kind)


def converted(model: FolderModule) -> torch.nn.Module:
    """The model in the type of this layout. In float64 it computes its experts one after the other, as transformers' own class of
    experts does."""
    kind = torch.get_default_dtype()
    if kind == torch.float64:
        model.model.config._experts_implementation = "eager"
    return model.to(kind)


def on_ranks(
    model: torch.nn.Module, shards: int, half: str, comm: Communicator
) -> tuple[DataParallelSteps, Named, ShardMesh | None]:
    """The stepper of a replica, whole or sharded, its weights, and how they are shared."""
    options = DdpJobOptions(precision=half, shard=str(shards))
    mesh = make_mesh(comm.device, comm.rank, comm.size, shards) if shards > 1 else None
    if mesh:
        send_weights(model, comm)
        shard(model, layer_units(model), mesh, torch.bfloat16 if half == "bf16" else None)
    weights = dict(model.named_parameters())
    stepper = (ShardedSteps if mesh else DataParallelSteps)(model, sgd(weights), comm, options)
    stepper.warm_up(*(torch.zeros_like(each[: SAMPLES // comm.size]) for each in samples()))
    return stepper, weights, mesh


def in_groups(
    tp: int, shards: int, half: str, classes: list[str] | None, comm: Communicator
) -> tuple[DataParallelSteps, Named, ShardMesh, Splits]:
    """The stepper of a model of which `tp` ranks compute each layer, its weights, and how they are shared."""
    options = DdpJobOptions(precision=half, shard=str(shards), tp=tp)
    mesh = make_mesh(comm.device, comm.rank, comm.size, shards, tp)
    assert mesh.tensor
    with in_float32():
        inner = FolderJobModel(folder, classes, 1, on_meta=True)
    model = converted(inner.module)
    parts = inner.split(mesh.tensor, comm)
    if shards > 1:
        shard(model, layer_units(model), mesh, torch.bfloat16 if half == "bf16" else None)
        give_shares_memory(model, comm.device)
    else:
        give_memory([model], comm.device)
    inner.fill_shares(comm)
    weights = dict(model.named_parameters())
    gradients = TensorGradients(dict(model.named_parameters()), mesh, parts)
    stepper = (ShardedSteps if shards > 1 else DataParallelSteps)(
        model, sgd(weights), comm, options, gradients, scoring_of(parts, mesh)
    )
    stepper.warm_up(*(torch.zeros_like(each[: SAMPLES * tp // comm.size]) for each in samples()))
    return stepper, weights, mesh, Splits(parts.splits, mesh.tensor)


def scoring_of(parts: TensorParts, mesh: ShardMesh) -> Scoring:
    """How the loss of a model in tensor groups is computed."""
    assert mesh.tensor
    return split_scoring(SplitLogits(mesh.tensor, parts.words)) if parts.words else PER_LABEL


def step(comm: Communicator, pp: int, shards: int, precision: str, tp: int = 1) -> dict[str, object]:
    """Loss and gradients on rank 0. In a function: DDP must be gone before the process group is, else its destructor can wait
    for ever."""
    torch.set_default_dtype(torch.float64 if precision == "float64" else torch.float32)
    classes = [str(i) for i in range(10)] if folder.images else None
    splits = None
    model = whole_model(classes, comm)
    half = "bf16" if precision == "bf16" else "fp32"
    stepper: Steps
    if pp and tp > 1:
        stepper, weights, mesh, splits, number = in_split_stages(pp, tp, shards, half, classes, comm)
    elif pp:
        send_weights(model, comm)
        stepper, weights, mesh, number = in_stages(model, pp, shards, half, comm)
    elif tp > 1:
        stepper, weights, mesh, splits = in_groups(tp, shards, half, classes, comm)
        number = comm.rank // tp
    else:
        stepper, weights, mesh = on_ranks(model, shards, half, comm)
        number = comm.rank
    gradients: Named = {}
    stepper.optimizer.register_step_pre_hook(lambda *_: gradients.update(seen(weights)))
    inputs, labels = samples()
    share = SAMPLES * (pp or 1) * tp // comm.size
    mine = slice(number * share, (number + 1) * share)
    total = int((labels != IGNORED).sum())
    stepper.train()
    loss = stepper.step([Batch(inputs[mine], labels[mine], share)], total, 1.0, 1)
    loss_sum = sum(row[0] for row in comm.exchange([loss.item()]))
    whole = gathered_state(gradients, mesh, splits) if mesh else gradients
    return {"loss": loss_sum / total, "gradients": collect.on_leader(comm, range(0, (pp or 1) * tp, tp), whole)}


def seen(weights: Named) -> Named:
    """Copies of the gradients; a weight of which this rank has no row has none."""
    return {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
        for name, weight in weights.items()
    }


with joined(read_world(os.environ)) as comm:
    found = {}
    for path in paths:
        folder = read_folder(path, "option --model")
        found[path.name] = steps = {}
        for words in sys.argv[3:]:
            degree, shares, kind, *ranks = words.split(",")
            try:
                steps[words] = step(comm, int(degree), int(shares), kind, *map(int, ranks))
            except UserError as error:  # equal on all ranks
                steps[words] = {"refused": str(error)}
            gc.collect()
    if comm.is_leader:
        torch.save(found if paths[1:] else steps, out)
