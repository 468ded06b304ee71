"""The job `pipeline`: a model in stages. It is cut and partitioned once, and each stage writes a shard of a checkpoint."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from algorun.inside.stop_flag import StopFlag
from algorun_train.checkpoint import collect
from algorun_train.checkpoint.pipeline_checkpoints import PipelineCheckpoints, RankStages, SavedStage
from algorun_train.checkpoint.shards import ShardStore
from algorun_train.checkpoint.state_file import JobRecord
from algorun_train.data.sampler import Batching
from algorun_train.loop.losses import Scoring, split_scoring
from algorun_train.loop.optimizer import build_optimizer
from algorun_train.loop.pipeline_steps import PipelineSteps
from algorun_train.loop.stepper import Stepper, draws_random_numbers
from algorun_train.models.flops import flops_per_token
from algorun_train.options.for_parallel import partition_options, run_options
from algorun_train.options.job_options import PipelineJobOptions
from algorun_train.options.mp_parameters import MpParameters
from algorun_train.options.pipeline_layout import lay_out
from algorun_train.parallel.layout.layout import Layout
from algorun_train.parallel.partition.costs import Partition
from algorun_train.parallel.partition.partition_file import PARTITION
from algorun_train.parallel.planning.model_partitioner import ModelPartitioner
from algorun_train.parallel.run import process_groups
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.parallel.schedules import find
from algorun_train.parallel.shard.split_logits import SplitLogits
from algorun_train.ranks.world import read_world

from . import pipeline_task
from .explain import ExplainedSteps
from .pipeline_task import PipelineTask
from .resuming import training_values
from .skeleton import JobContext, TrainingJob, joined_job, numerics, train
from .user_pipeline import with_target


def run(options: PipelineJobOptions, asked: MpParameters, stop: StopFlag) -> None:
    """Joins the ranks, partitions the model and trains. Call it on all ranks. Raises UserError."""
    world = read_world(os.environ)
    layout = lay_out(options, asked, world.world_size, torch.__version__)
    with joined_job(options, world, stop) as context:
        task, stages = _stages(options, asked, layout, context)
        if stages is not None:
            train(PipelineJob(options, task, stages, context), context)


@dataclass(frozen=True, slots=True)
class ModelInStages:
    """This rank's stages of the model, and the decisions behind them.

    `first_names`: {name: first name of the same tensor} for the uncut model's state dict, in its order.
    `scoring`: how the output of the last stage is compared with labels. `weights`: the number of the uncut model's weights;
    `token_flops`: its operations for a token. `random`: whether a training step draws random numbers. `first_weights`: a line
    about the weights that training starts from.
    """

    layout: Layout
    pipeline: Pipeline
    partition: Partition | None
    first_names: dict[str, str]
    scoring: Scoring
    weights: int
    token_flops: float
    random: bool
    first_weights: str | None


def _stages(
    options: PipelineJobOptions, asked: MpParameters, layout: Layout, context: JobContext
) -> tuple[PipelineTask, ModelInStages | None]:
    """Loads the data, builds the model and partitions it. With --profile-only there are no stages.

    The uncut model exists only in this function, one of a folder only on rank 0 while it is cut. Afterwards the memory of the
    other ranks' stages is free.
    """
    comm = context.comm
    task, model = pipeline_task.load(options, context.folders, comm)
    names, weights = _first_names(model), sum(parameter.numel() for parameter in model.parameters())
    random, flops = draws_random_numbers([model]), flops_per_token(model)
    for line in (*task.lines, f"layout: {layout}"):
        comm.say(line)
    axes = process_groups.join(layout.grid, comm.rank, comm.device, layout.shards)
    parts = task.late.split(axes.tensor, comm) if task.late and axes.tensor else None
    if parts and layout.stages > 1:
        comm.say("partition: measured with whole layers, without the sums of a tensor group")
    if find(layout.schedule).experimental:
        comm.say(f"schedule {layout.schedule} is experimental: it splits the backward pass, which some modules forbid")
    example, labels = task.example(layout.microbatch)
    loss = with_target(task.scoring.loss, labels, comm.device)
    build = task.late.build if task.late else None
    held = parts.held if parts else 1.0
    partitioner = ModelPartitioner(model, layout, partition_options(options, asked), comm, loss, build, held)
    found = partitioner.partition(example, context.folders.output / PARTITION)
    if options.profile_only:
        return task, None
    words = parts.words if parts else None
    scoring = split_scoring(SplitLogits(axes.tensor, words)) if words and axes.tensor else task.scoring
    pipeline = Pipeline(
        found.stages, axes, run_options(options, layout), scoring.loss, split=parts.split if parts else None
    )
    first_weights = task.late.fill(pipeline.weights.tensors(), comm, pipeline.splits) if task.late else None
    return task, ModelInStages(layout, pipeline, found.partition, names, scoring, weights, flops, random, first_weights)


class PipelineJob(TrainingJob):
    """Stages, optimizer and checkpoints of one job on this rank."""

    options: PipelineJobOptions
    replica = "pipeline"

    def __init__(
        self, options: PipelineJobOptions, task: PipelineTask, stages: ModelInStages, context: JobContext
    ) -> None:
        self.options, self._task, self._stages, self._context = options, task, stages, context
        layout, pipeline = stages.layout, stages.pipeline
        self.source = task.source if pipeline.is_first else task.source.without_inputs()
        self.sample_flops = stages.token_flops * self.source.sample_tokens
        replica, _ = layout.grid.place(context.comm.rank)
        self.batching = Batching(options.batch_size, 1, replica, layout.grid.dp)
        self._optimizer = build_optimizer(options, pipeline.parameters())
        saved = [
            SavedStage(index, stage.module, pipeline.weights.saved_by_earlier_stage(index))
            for index, stage in pipeline.stages.items()
        ]
        self.training = training_values(options, self.batching, task.inputs)
        self.checkpoints = PipelineCheckpoints(
            ShardStore(context.folders.checkpoints, options.keep_checkpoints),
            JobRecord(task.identity, self.training),
            RankStages(layout.stages, saved, replica < layout.shards, pipeline.axes.mesh, pipeline.splits),
            self._optimizer,
            context.comm,
        )
        self._explained: ExplainedSteps | None = None

    def start_from_scratch(self) -> None:
        if self._stages.first_weights:
            self._context.comm.say(self._stages.first_weights)

    def introduction(self) -> list[str]:
        options, layout = self.options, self._stages.layout
        lines = [
            f"model: {self._task.name}, {self._stages.weights} weights, {numerics(options, self._context.comm.device)}",
            f"global batch: {self.batching.global_batch} = {options.batch_size} per pipeline x {layout.grid.dp} pipelines",
        ]
        if options.tp > 1:
            words = "all words" if self._stages.scoring is self._task.scoring else f"1 / {options.tp} of the words"
            lines.append(
                f"tensor parallel: {options.tp} ranks compute each layer together; one of the last stage has the logits of {words}"
            )
        return lines

    def make_stepper(self) -> Stepper:
        options, stages, comm = self.options, self._stages, self._context.comm
        stepper = PipelineSteps(stages.pipeline, self._optimizer, comm, options, stages.scoring, stages.random)
        if not options.explain:
            return stepper
        folder = self._context.folders.output
        self._explained = ExplainedSteps(stepper, stages.layout, stages.partition, folder, options.recompute)
        return self._explained

    def training_ended(self) -> None:
        if self._explained:
            self._explained.finish()

    def model_state(self) -> dict[str, torch.Tensor]:
        """The uncut model's state dict on rank 0, in its order; tied weights have all of their names. {} on other ranks."""
        ranks, pipeline = self._stages.layout.grid.pipelines[0], self._stages.pipeline
        state = collect.on_leader(self._context.comm, ranks, pipeline.whole_state())
        if not self._context.comm.is_leader:
            return {}
        return {name: state[first] for name, first in self._stages.first_names.items()}

    def description(self) -> Mapping[str, object]:
        return self._task.description

    def write_model(self, state: dict[str, torch.Tensor], description: Mapping[str, object], folder: Path) -> Path:
        return self._task.write(state, description, folder)


def _first_names(model: nn.Module) -> dict[str, str]:
    """{name: first name of the same tensor} for the model's state dict, in its order. Tied weights have several names."""
    firsts: dict[tuple[int, torch.Size], str] = {}
    return {
        name: firsts.setdefault((id(tensor) if tensor.is_meta else tensor.data_ptr(), tensor.shape), name)
        if tensor.numel()
        else name
        for name, tensor in model.state_dict(keep_vars=True).items()
    }
