"""What all training jobs do, in order: join the ranks, resume, train, write the artifact. A `TrainingJob` adds what differs."""

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from algorun.inside.dissemination import Dissemination
from algorun.inside.stop_agreement import Agreement
from algorun.inside.stop_flag import StopFlag
from algorun_train.checkpoint import artifact as model_file
from algorun_train.checkpoint.finished import Artifact
from algorun_train.checkpoint.folder_check import check_artifacts, check_checkpoints
from algorun_train.checkpoint.resumed import Resumed
from algorun_train.checkpoint.state_file import Values
from algorun_train.common.files import writable
from algorun_train.data.batch import BatchSource
from algorun_train.data.sampler import Batching, steps_in
from algorun_train.loop.learning_rate import learning_rate_schedule
from algorun_train.loop.metrics import TOKENS, EpochReport, StepReport, per_s, perplexity
from algorun_train.loop.progress import LoopProgress, Position
from algorun_train.loop.sinks import Sinks
from algorun_train.loop.stepper import Stepper
from algorun_train.loop.summary import clear_summary, write_summary
from algorun_train.loop.training_loop import LoopSetup, TrainingLoop, TrainingOutcome
from algorun_train.options.folders import READ, Folders, find_folders
from algorun_train.options.job_options import TrainOptions
from algorun_train.options.option_rules import OnResume, values_of
from algorun_train.ranks.communicator import LONG_WORK, Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import World

from . import resuming
from .resuming import job_name


@dataclass(frozen=True, slots=True)
class JobContext:
    """Where a job runs: the joined ranks, its folders, and the flag that SIGTERM sets on this rank."""

    comm: Communicator
    folders: Folders
    stop: StopFlag


class Checkpoints(Protocol):
    """Saves and resumes a job. Implementations: DdpCheckpoints, PipelineCheckpoints. Call all methods on all ranks."""

    def restore(self) -> Resumed | None:
        """Loads the newest checkpoint; None if there is none."""
        ...

    def save(self, progress: LoopProgress) -> None:
        """Writes a checkpoint, or starts to write it."""
        ...

    def finish(self) -> None:
        """Waits until everything is written."""
        ...

    def artifact_written(self, artifact: Artifact) -> None:
        """Notes that the model of the newest checkpoint is written as an artifact. Call it on rank 0 alone."""
        ...


class TrainingJob(ABC):
    """What differs between the jobs. `train` calls the methods on all ranks, in the order of this class."""

    options: TrainOptions
    source: BatchSource  # of this rank's batches
    batching: Batching
    replica = "rank"  # what takes a share of a step: a rank, or a pipeline of several
    checkpoints: Checkpoints
    training: Values  # what changes training beside the identity of its checkpoints, by name (resuming.py)
    sample_flops: float = 0.0  # operations of the model for a sample, forward and backward; 0.0 not known

    def start_from_scratch(self) -> None:  # noqa: B027 (most jobs have nothing to do)
        """Loads weights from elsewhere if the options ask for it. Called only if no checkpoint was loaded."""

    @abstractmethod
    def introduction(self) -> list[str]:
        """Lines about data, model and batch, for the log."""

    @abstractmethod
    def make_stepper(self) -> Stepper:
        """The stepper, ready for its first step."""

    def training_ended(self) -> None:  # noqa: B027 (most jobs have nothing to do)
        """Called after the last step, also after a stop."""

    @abstractmethod
    def model_state(self) -> dict[str, torch.Tensor]:
        """The trained model's state dict on rank 0. The other ranks' results are not used."""

    @abstractmethod
    def description(self) -> Mapping[str, object]:
        """What the artifact says about its model."""

    def write_model(self, state: dict[str, torch.Tensor], description: Mapping[str, object], folder: Path) -> Path:
        """Writes the artifact, on rank 0; returns the path that the log names. Raises OSError."""
        return model_file.write_model(folder, state, description)


@contextlib.contextmanager
def joined_job(options: TrainOptions, world: World, stop: StopFlag) -> Iterator[JobContext]:
    """Joins the ranks and makes the folders. Call it on all ranks. Raises UserError, the same on all ranks, if a rank
    cannot join or a folder cannot be written."""
    folders = find_folders(options, os.environ, Path.is_dir)
    with joined(world) as comm:
        comm.from_leader(lambda: _make_folders(folders))
        comm.on_all(lambda: check_checkpoints(folders.checkpoints))
        if folders.unread:
            comm.say(f"channels that are not read: {', '.join(folders.unread)}; read are {READ}")
        set_numerics(options)
        yield JobContext(comm, folders, stop)


def train(job: TrainingJob, context: JobContext) -> None:
    """Resumes, trains to the last epoch or a stop, and writes the artifact. Call it on all ranks.

    Raises UserError for a checkpoint of another job or one without a step left to train, and TrainingError if the loss is
    not finite.
    """
    options, comm = job.options, context.comm
    say = comm.say
    resumed = job.checkpoints.restore() if options.resume == "auto" else None
    artifact = Artifact(comm.from_leader(lambda: job_name(os.environ)), values_of(options, {OnResume.ARTIFACT}))
    if resumed is None:
        job.start_from_scratch()
    else:
        for line in resuming.introduction(
            resumed, resuming.Resuming(options, job.training, artifact, job.source.train_count)
        ):
            say(line)
    start = resumed.progress if resumed else None
    learning_rate = learning_rate_schedule(options, job.batching.global_batch)
    warnings = filter(None, [precision_warning(options, comm.device)])
    for line in (*job.introduction(), *warnings, _rate_line(options, learning_rate.peak)):
        say(line)
    if warning := short_epoch(job.source.train_count, job.source.unit, job.batching, job.replica):
        say(warning)
    stepper = job.make_stepper()
    with _reports(context, start.position if start else Position()) as report:
        setup = LoopSetup(
            options=options,
            comm=comm,
            data=job.source,
            stepper=stepper,
            batching=job.batching,
            learning_rate=learning_rate,
            agreement=Agreement(Dissemination(comm), context.stop),
            save=job.checkpoints.save,
            report=report,
            sample_flops=job.sample_flops,
        )
        outcome = TrainingLoop(setup, start).run()
        job.checkpoints.finish()
        job.training_ended()
    if outcome.stopped:
        say(f"stopped on request after step {outcome.position.step}; the same command goes on from there")
        return
    state = job.model_state()
    say(comm.from_leader(lambda: write_results(job, context.folders, state, outcome), LONG_WORK))
    comm.from_leader(lambda: job.checkpoints.artifact_written(artifact))


@contextlib.contextmanager
def _reports(context: JobContext, start: Position) -> Iterator[Callable[[StepReport | EpochReport], None]]:
    """A function for the loop's reports: on rank 0 it writes them to the log and to files, on other ranks it does nothing."""
    if not context.comm.is_leader:
        yield lambda report: None
        return
    sinks = Sinks(context.folders.output, start)
    yield sinks.write
    sinks.close()


def _make_folders(folders: Folders) -> None:
    """Creates the folders that a job writes to. Raises UserError if it cannot write to one of them."""
    written = ((folders.checkpoints, "checkpoint"), (folders.model, "model"), (folders.output, "output"))
    for folder, name in written:
        writable(folder, f"{name} folder", f"--{name}-dir with a folder that can be written")
    check_artifacts((folders.model, folders.output))
    clear_summary(folders.output)


def set_numerics(options: TrainOptions) -> None:
    """Sets torch's precision and determinism in this process. Call it before the first tensor is made."""
    if options.matmul_precision:
        torch.set_float32_matmul_precision(options.matmul_precision)
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it (torch's notes on randomness)
        torch.use_deterministic_algorithms(True)


def numerics(options: TrainOptions, device: torch.device) -> str:
    """torch's precision and device, for the log."""
    matmul = f", matrix products in {options.matmul_precision} precision" if options.matmul_precision else ""
    return f"{options.precision}{matmul} on {device.type}"


def precision_warning(options: TrainOptions, device: torch.device) -> str:
    """What is wrong with the precision on this device; "" where nothing is. Called on all ranks, without communication."""
    if options.precision != "bf16" or device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False):
        return ""
    name = torch.cuda.get_device_name(device)
    return f"warning: option --precision: {name} has no units for bf16, which is slower there than fp32; fix: --precision fp32"


def _rate_line(options: TrainOptions, peak: float) -> str:
    scaled = f", scaled from {options.lr:g} at a global batch of {options.reference_batch}" if options.scale_lr else ""
    return (
        f"learning rate: {peak:g}{scaled}, after {options.warmup_epochs:g} epochs of warm-up, "
        f"x {options.gamma:g} per epoch"
    )


def write_results(job: TrainingJob, folders: Folders, state: dict[str, torch.Tensor], outcome: TrainingOutcome) -> str:
    """Writes the artifact and the summary, on rank 0. Returns the line for the log that names their folders."""
    counted: dict[str, float] = {"epochs": outcome.position.epoch, "steps": outcome.position.step}
    validation = {"val_loss": outcome.val_loss, "val_accuracy": outcome.val_accuracy}
    tokens, text = job.source.sample_tokens, {}
    if tokens:
        validation["val_perplexity"] = perplexity(outcome.val_loss)
        text = {"perplexity": validation["val_perplexity"], per_s(TOKENS): outcome.samples_per_s * tokens}
    file = job.write_model(state, {**job.description(), **validation, **counted}, folders.model)
    figures: dict[str, float] = {
        "loss": outcome.val_loss,
        "accuracy": outcome.val_accuracy,
        per_s(job.source.unit): outcome.samples_per_s,
        **text,
    }
    write_summary(folders.output, figures | counted)
    return f"artifact: {file} metrics: {folders.output}"


def short_epoch(count: int, unit: str, batching: Batching, replica: str) -> str | None:
    """The warning if `count` samples (their `unit` in the plural) are one step an epoch; None for two steps or more.

    `replica`: what takes a share of a step, "rank" or "pipeline".
    """
    if steps_in(count, batching.global_batch) > 1:
        return None
    batch, passes, replicas = batching.batch, batching.accumulation, batching.replicas
    factors = f"{batch} per {replica} x {_counted(replicas, f'{replica}s')}" + (f" x {passes} passes" * (passes > 1))
    idle = replicas - min(replicas, steps_in(count, batch))
    without = f"{idle} of the {replicas} {replica}s {'have' if idle > 1 else 'has'} no {unit[:-1]}; " if idle else ""
    fixes = ["a smaller --batch-size or --accumulation" if passes > 1 else "a smaller --batch-size"]
    fixes += [f"fewer {replica}s"] if replicas > 1 else []
    return (
        f"warning: an epoch is 1 step: {_counted(count, f'training {unit}')}, and a global batch of "
        f"{batching.global_batch} ({factors}); {without}fix: {', '.join(fixes)}, or more data"
    )


def _counted(number: int, words: str) -> str:
    return f"{number} {words[:-1] if number == 1 else words}"
