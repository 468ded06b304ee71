"""One step of a Hugging Face folder's model in float64: `folder_step.py FOLDER OUT [PP [SHARDS]]`. Rank 0 writes loss and gradients.

Eight samples, shared by the ranks, or by pipelines of PP ranks, SHARDS of which share the weights of their stages; some labels of some samples do not count.
"""

import os
import sys
from pathlib import Path

import torch

from algorun_train.checkpoint import collect
from algorun_train.data.batch import IGNORED, Batch
from algorun_train.jobs.first_weights import send_weights
from algorun_train.loop.data_parallel_steps import DataParallelSteps
from algorun_train.loop.losses import PER_LABEL
from algorun_train.loop.pipeline_steps import PipelineSteps
from algorun_train.models.folder_config import read_folder
from algorun_train.models.folder_model import build_model, load_weights, prepare_transformers
from algorun_train.options.for_parallel import partition_options, run_options
from algorun_train.options.job_options import DdpJobOptions, PipelineJobOptions
from algorun_train.options.mp_parameters import MpParameters
from algorun_train.options.pipeline_layout import lay_out
from algorun_train.parallel.planning.model_partitioner import ModelPartitioner
from algorun_train.parallel.run import process_groups
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.parallel.shard.sharded_model import gathered_state
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world

path, out = Path(sys.argv[1]), Path(sys.argv[2])
SAMPLES = 8
pp, shards = (int(each) for each in (*sys.argv[3:], "0", "1")[:2])
torch.set_default_dtype(torch.float64)
prepare_transformers()
folder = read_folder(path, "option --model")
classes = [str(i) for i in range(10)] if folder.images else None


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(5)
    if folder.images:
        return torch.rand(SAMPLES, 3, 16, 16, generator=random) * 2 - 1, torch.randint(10, (SAMPLES,), generator=random)
    inputs, labels = (torch.randint(300, (SAMPLES, 12), generator=random) for _ in range(2))
    labels[0, :7] = labels[5, 3:] = IGNORED
    return inputs, labels


def in_stages(
    model: torch.nn.Module, shares: int, comm: Communicator
) -> tuple[PipelineSteps, dict[str, torch.nn.Parameter], int]:
    """The stepper of this rank's stages, their weights, and the number of the pipeline."""
    options = PipelineJobOptions(pp=pp, shard=str(shards), batch_size=SAMPLES // shares, microbatches=SAMPLES // shares)
    layout = lay_out(options, MpParameters(), comm.size)
    partitioner = ModelPartitioner(model, layout, partition_options(options, MpParameters()), comm)
    stages = partitioner.partition(samples()[0][:1], out.with_suffix(".json")).stages
    axes = process_groups.join(layout.grid, comm.rank, comm.device, shards)
    pipeline = Pipeline(stages, axes, run_options(options, layout), PER_LABEL.loss)
    optimizer = torch.optim.SGD([{"params": list(pipeline.parameters())}], 1.0)  # a stage of a dropout has none
    stepper = PipelineSteps(pipeline, optimizer, comm, options, PER_LABEL, random=False)
    return stepper, dict(pipeline.named_parameters()), layout.grid.place(comm.rank)[0]


def step(comm: Communicator) -> None:
    """In a function: DDP must be gone before the process group is, else its destructor can wait for ever."""
    model = build_model(folder, classes, comm.rank)  # other weights on each rank, until those of rank 0 are sent
    if comm.is_leader:
        load_weights(model, folder, classes)
    model.double()
    inputs, labels = samples()
    shares = comm.size // (pp or 1)
    stepper: DataParallelSteps | PipelineSteps
    if pp:
        send_weights(model, comm)
        stepper, weights, number = in_stages(model, shares, comm)
    else:
        stepper = DataParallelSteps(model, torch.optim.SGD(model.parameters(), 1.0), comm, DdpJobOptions())
        stepper.warm_up(*(torch.zeros_like(each[: SAMPLES // shares]) for each in (inputs, labels)))
        weights, number = dict(model.named_parameters()), comm.rank
    mine = slice(number * SAMPLES // shares, (number + 1) * SAMPLES // shares)
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    stepper.train()
    total = int((labels != IGNORED).sum())
    loss = stepper.step([Batch(inputs[mine], labels[mine], SAMPLES // shares)], total, 1.0, 1)
    loss_sum = sum(row[0] for row in comm.exchange([loss.item()]))
    gradients = {name: before[name] - weight.detach() for name, weight in weights.items()}
    mesh = stepper.pipeline.axes.mesh if isinstance(stepper, PipelineSteps) else None
    gradients = gathered_state(gradients, mesh) if mesh else gradients
    gradients = collect.on_leader(comm, range(pp or 1), gradients)
    if comm.is_leader:
        torch.save({"loss": loss_sum / total, "gradients": gradients}, out)


with joined(read_world(os.environ)) as comm:
    step(comm)
