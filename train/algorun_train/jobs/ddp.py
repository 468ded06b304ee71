"""Trains an image classifier with data parallelism: `python -m algorun_train.jobs.ddp --epochs 10 ..` under any launcher."""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from algorun.inside.stop_agreement import Agreement
from algorun.inside.stop_flag import StopFlag
from algorun_train.options import parsing
from algorun_train.options.config import DdpConfig

STOP = StopFlag()
if __name__ == "__main__":  # before torch loads, which takes seconds
    STOP.install()
    if parsing.answer_help(DdpConfig, "algorun_train.jobs.ddp", sys.argv[1:]):
        sys.exit(0)

import torch  # noqa: E402

from algorun_train.checkpoint import artifact  # noqa: E402
from algorun_train.checkpoint import store as checkpoint  # noqa: E402
from algorun_train.checkpoint.resume import restore, state  # noqa: E402
from algorun_train.data import image_data  # noqa: E402
from algorun_train.data.sampler import Batching  # noqa: E402
from algorun_train.errors import UserError, guarded, leave  # noqa: E402
from algorun_train.loop.data_parallel import DataParallel  # noqa: E402
from algorun_train.loop.loop import Loop, Outcome, Parts, Position, Progress  # noqa: E402
from algorun_train.loop.optimizer import optimizer, schedule  # noqa: E402
from algorun_train.loop.sinks import Sinks  # noqa: E402
from algorun_train.loop.summary import write_summary  # noqa: E402
from algorun_train.models.image_models import ModelSpec, build, specify  # noqa: E402
from algorun_train.models.pretrained import start_from  # noqa: E402
from algorun_train.options import paths  # noqa: E402
from algorun_train.ranks.communicator import Communicator  # noqa: E402
from algorun_train.ranks.join import joined  # noqa: E402
from algorun_train.ranks.world import read_world  # noqa: E402

from .job import figures, ignore, numerics, prepare_folders, rate_line, result, set_numerics  # noqa: E402


def main(argv: list[str]) -> int:
    """Reads options and environment, joins the ranks and trains; returns the exit code."""
    config = parsing.read(DdpConfig, argv)
    world = read_world(os.environ)
    where = paths.resolve(config, os.environ, Path.is_dir)
    with joined(world) as comm:
        train(config, where, comm)
    return 0


def train(config: DdpConfig, where: paths.Paths, comm: Communicator) -> None:
    """One job on the joined ranks: data, model, loop, artifact."""
    say = comm.say
    comm.from_leader(lambda: _prepare(config, where))
    set_numerics(config)
    images = image_data.load(config, where, comm)
    spec = specify(config, len(images.classes), images.side)
    model = build(spec, config.seed).to(comm.device)
    optim = optimizer(config, model.parameters())
    store = checkpoint.Store(where.checkpoints, config.keep_checkpoints)
    identity = _identity(config, spec, images)
    start = restore(store, identity, model, optim, comm, say) if config.resume == "auto" else None
    if start and start.position.epoch >= config.epochs:
        say(f"nothing left to train after epoch {start.position.epoch}; fix: more --epochs, or --resume never")
    if (weights := config.init_from) and start is None:
        say(comm.from_leader(lambda: start_from(model, weights)))  # the other ranks get them from rank 0 by DDP

    batching = Batching(config.batch_size, config.accumulation, comm.rank, comm.size)
    rates = schedule(config, batching.global_batch)
    for line in _introduction(config, images, spec, model, comm, batching.global_batch, rates.peak):
        say(line)
    stepper = DataParallel(model, optim, comm, config)
    stepper.warm_up(images.side, config.batch_size)
    sinks = Sinks(where.output, start.position if start else Position()) if comm.is_leader else None

    def save(progress: Progress) -> None:
        begun = time.perf_counter()
        folder = comm.from_leader(
            lambda: str(store.save(progress.position.step, state(identity, progress, model, optim)))
        )
        say(f"checkpoint: {folder} seconds: {time.perf_counter() - begun:.2f}")

    report = sinks.write if sinks else ignore
    agreement = Agreement(comm, STOP)
    parts = Parts(config, comm, images, stepper, batching, rates, agreement, save, report)
    outcome = Loop(parts, start).run()
    if sinks:
        sinks.close()
    if outcome.stopped:
        say(f"stopped on request after step {outcome.position.step}; the same command goes on from there")
        return
    say(comm.from_leader(lambda: _finish(config, where, spec, images, model, outcome)))


def _prepare(config: DdpConfig, where: paths.Paths) -> None:
    prepare_folders(where)
    if config.compile and not any(shutil.which(name) for name in ("c++", "g++", "gcc", "clang")):
        raise UserError("option --compile: torch.compile needs a C++ compiler; fix: install g++, or --compile False")


def _identity(config: DdpConfig, spec: ModelSpec, images: image_data.ImageData) -> dict[str, Any]:
    """What a checkpoint must share with the job that resumes it. Layout, batch, epochs and rates may change."""
    shapes = {key: value for key, value in spec.as_dict().items() if key != "dropout"}
    rest = {"optimizer": config.optimizer, "seed": config.seed, "class_names": list(images.classes)}
    return shapes | rest | {"training_images": images.train_count}


def _introduction(
    config: DdpConfig,
    images: image_data.ImageData,
    spec: ModelSpec,
    model: torch.nn.Module,
    comm: Communicator,
    global_batch: int,
    peak: float,
) -> list[str]:
    weights = sum(p.numel() for p in model.parameters())
    return [
        f"data: {images.source}; {images.train_count} training and {images.validation_count} validation "
        f"images of {images.side} x {images.side}, {len(images.classes)} classes",
        f"model: {spec.model}, {weights} weights, {numerics(config, comm.device)}",
        f"global batch: {global_batch} = {config.batch_size} per rank x {comm.size} ranks "
        f"x {config.accumulation} passes",
        rate_line(config, peak),
    ]


def _finish(
    config: DdpConfig,
    where: paths.Paths,
    spec: ModelSpec,
    images: image_data.ImageData,
    model: torch.nn.Module,
    outcome: Outcome,
) -> str:
    """Writes artifact and summary (rank 0); returns a line that says where."""
    description = spec.as_dict() | {"class_names": list(images.classes)} | result(outcome)
    file = artifact.write_model(where.model, model.state_dict(), description)
    write_summary(where.output, figures(outcome, "images_per_s"))
    return f"artifact: {file} metrics: {where.output}"


if __name__ == "__main__":
    leave(guarded(main))
