"""Trains a model in pipeline stages, side by side with others: `python -m algorun_train.jobs.pipeline --pp 2 ..` under any launcher."""

import os
import sys
from pathlib import Path

from algorun.inside.stop_agreement import Agreement
from algorun.inside.stop_flag import StopFlag
from algorun_train.options import parsing
from algorun_train.options.config import PipelineConfig

STOP = StopFlag()
if __name__ == "__main__":  # before torch loads, which takes seconds
    STOP.install()
    if parsing.answer_help(PipelineConfig, "algorun_train.jobs.pipeline", sys.argv[1:]):
        sys.exit(0)

import torch  # noqa: E402
from torch import nn  # noqa: E402

from algorun_train.checkpoint import artifact, collect, shard_resume  # noqa: E402
from algorun_train.checkpoint.shard_saver import PartSaver  # noqa: E402
from algorun_train.checkpoint.shards import PartStore  # noqa: E402
from algorun_train.data.sampler import Batching  # noqa: E402
from algorun_train.errors import guarded, leave  # noqa: E402
from algorun_train.loop.loop import Loop, Outcome, Parts, Position, Progress  # noqa: E402
from algorun_train.loop.optimizer import optimizer, schedule  # noqa: E402
from algorun_train.loop.pipeline_steps import Staged, sample_losses  # noqa: E402
from algorun_train.loop.sinks import Sinks  # noqa: E402
from algorun_train.loop.summary import write_summary  # noqa: E402
from algorun_train.options import mp_parameters, paths  # noqa: E402
from algorun_train.options.layout import Layout, lay_out  # noqa: E402
from algorun_train.options.mp_parameters import Wishes  # noqa: E402
from algorun_train.parallel.partition.decide import PARTITION, Decider  # noqa: E402
from algorun_train.parallel.run import process_groups  # noqa: E402
from algorun_train.parallel.run.pipeline import Pipeline  # noqa: E402
from algorun_train.parallel.schedules import find  # noqa: E402
from algorun_train.ranks.communicator import Communicator  # noqa: E402
from algorun_train.ranks.join import joined  # noqa: E402
from algorun_train.ranks.world import read_world  # noqa: E402
from algorun_train.user_pipeline import assemble, with_target  # noqa: E402

from . import pipeline_task  # noqa: E402
from .explain import Explained  # noqa: E402
from .job import figures, ignore, numerics, prepare_folders, rate_line, result, set_numerics  # noqa: E402


def main(argv: list[str]) -> int:
    """Reads options and environment, joins the ranks and trains; returns the exit code."""
    config, wishes = mp_parameters.apply(parsing.read(PipelineConfig, argv))
    world = read_world(os.environ)
    layout = lay_out(config, wishes, world.world_size, torch.__version__)
    where = paths.resolve(config, os.environ, Path.is_dir)
    with joined(world) as comm:
        train(config, wishes, layout, where, comm)
    return 0


def train(config: PipelineConfig, wishes: Wishes, layout: Layout, where: paths.Paths, comm: Communicator) -> None:
    """One job on the joined ranks: data, model, partition, loop, artifact."""
    say = comm.say
    comm.from_leader(lambda: prepare_folders(where))
    set_numerics(config)
    job, model = pipeline_task.load(config, where, comm)
    names, weights = _names(model), sum(p.numel() for p in model.parameters())
    for line in (*job.lines, f"layout: {layout}"):
        say(line)
    if find(layout.schedule).experimental:
        say(f"schedule {layout.schedule} is experimental: it splits the backward pass, which not every module stands")
    example, labels = job.example(layout.microbatch)
    decider = Decider(config, wishes, layout, model, comm, say, with_target(sample_losses, labels, comm))
    split = decider.split(example, where.output / PARTITION)
    if config.profile_only:
        return
    pipeline = assemble(config, layout, split, process_groups.join(layout.grid, comm.rank, comm.device), sample_losses)
    decision = split.decision
    del model, decider, split  # the other ranks' stages go, and leave their memory to this one's
    optim = optimizer(config, pipeline.parameters())
    modules = [stage.module for stage in pipeline.modules.values()]
    store = PartStore(where.checkpoints, config.keep_checkpoints)
    start = None
    if config.resume == "auto":
        own = {name for module in modules for name in module.state_dict()}
        restored = shard_resume.restore(store, job.identity, own.__contains__, comm, say)
        if restored:
            restored.load_into(modules, optim, comm)
            start = restored.progress
    if start and start.position.epoch >= config.epochs:
        say(f"nothing left to train after epoch {start.position.epoch}; fix: more --epochs, or --resume never")

    dp_rank, _ = layout.grid.place(comm.rank)
    batching = Batching(config.batch_size, 1, dp_rank, layout.grid.dp)
    rates = schedule(config, batching.global_batch)
    say(f"model: {config.model}, {weights} weights, {numerics(config, comm.device)}")
    say(f"global batch: {batching.global_batch} = {config.batch_size} per pipeline x {layout.grid.dp} pipelines")
    say(rate_line(config, rates.peak))
    sinks = Sinks(where.output, start.position if start else Position()) if comm.is_leader else None
    stepper = Staged(pipeline, optim, comm, config.seed, config.clip_norm)
    explained = (
        Explained(stepper, layout, decision, where.output, comm, say, config.recompute) if config.explain else None
    )
    saver = PartSaver(store, comm, say)
    writes = dp_rank == 0  # the other replicas hold the same

    def save(progress: Progress) -> None:
        states = {
            index: shard_resume.state(job.identity, progress, stage.module, optim, pipeline.copied(index))
            for index, stage in (pipeline.modules.items() if writes else ())
        }
        saver.save(progress.position.step, layout.stages, states)

    agreement = Agreement(comm, STOP)
    report = sinks.write if sinks else ignore
    source = job.source if 0 in pipeline.modules else job.source.without_inputs()
    parts = Parts(config, comm, source, explained or stepper, batching, rates, agreement, save, report)
    outcome = Loop(parts, start).run()
    saver.finish()
    if explained:
        explained.finish()
    if sinks:
        sinks.close()
    if outcome.stopped:
        say(f"stopped on request after step {outcome.position.step}; the same command goes on from there")
        return
    say(_finish(job, names, layout, where, pipeline, outcome, comm))


def _names(model: nn.Module) -> dict[str, str]:
    """The names of the model's state dict in its order, each with the first name of the same tensor: tied weights have
    several."""
    firsts: dict[tuple[int, torch.Size], str] = {}
    return {
        name: firsts.setdefault((tensor.data_ptr(), tensor.shape), name) if tensor.numel() else name
        for name, tensor in model.state_dict().items()
    }


def _finish(
    job: pipeline_task.Task,
    names: dict[str, str],
    layout: Layout,
    where: paths.Paths,
    pipeline: Pipeline,
    outcome: Outcome,
    comm: Communicator,
) -> str:
    """Writes the whole model as one artifact, and the summary (rank 0); returns a line that says where."""
    whole = collect.on_leader(comm, layout.grid.pipelines[0], pipeline.state_dict())

    def write() -> str:
        ordered = {name: whole[first] for name, first in names.items()}
        file = artifact.write_model(where.model, ordered, job.description | result(outcome))
        write_summary(where.output, figures(outcome, f"{job.source.unit}_per_s"))
        return f"artifact: {file} metrics: {where.output}"

    return comm.from_leader(write)


if __name__ == "__main__":
    leave(guarded(main))
