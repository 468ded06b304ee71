"""What a job says about the checkpoint that it resumes from, and whether a step is left to train. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from algorun_train.checkpoint.finished import Artifact
from algorun_train.checkpoint.resumed import Resumed
from algorun_train.checkpoint.state_file import Values
from algorun_train.common.errors import UserError
from algorun_train.data.sampler import Batching
from algorun_train.loop.progress import Position
from algorun_train.options.job_options import TrainOptions
from algorun_train.options.option_rules import OnResume, values_of

ANEW = "--resume never (algorun submit: --clean-state)"
GLOBAL_BATCH = "global_batch"


@dataclass(frozen=True, slots=True)
class Resuming:
    """The job that resumes. `training`: what changes training, by name (`training_values`). `artifact`: the one that it
    will write. `train_count`: the samples of an epoch."""

    options: TrainOptions
    training: Values
    artifact: Artifact
    train_count: int


def training_values(options: TrainOptions, batching: Batching, inputs: Values) -> Values:
    """What changes training, and may differ from the checkpoint that a job resumes from: options, the global batch, and
    checksums of `inputs`. JSON values by name."""
    given = values_of(options, {OnResume.COMPARED, OnResume.BATCH})
    return {**given, GLOBAL_BATCH: batching.global_batch, **inputs}


def job_name(environ: Mapping[str, str]) -> str:
    """What is the same in all attempts and interruptions of one job, and in no other job; "" if nothing tells.

    SageMaker names a job. Elsewhere the launcher's folder on rank 0's host tells: each start has a new one.
    """
    return environ.get("TRAINING_JOB_NAME") or PurePath(environ.get("ALGORUN_RUN_DIR", "")).name


def introduction(resumed: Resumed, job: Resuming) -> list[str]:
    """Lines for the log. Raises UserError if no step is left to train, unless the job only has to write its artifact."""
    differing = _differences(resumed, job)
    if _steps_left(resumed.progress.position, job):
        return _warnings(resumed, [text for name, text in differing.items() if name not in _in_batch(job)])
    # The global batch also depends on the number of ranks, which a restarted job may have changed.
    asked = [text for name, text in differing.items() if name != GLOBAL_BATCH]
    if (
        resumed.progress.position.epoch <= job.options.epochs
        and resumed.options
        and not asked
        and _is_ours(resumed, job)
    ):
        return ["no step is left to train: the job evaluates and writes its artifact"]
    raise _nothing_left(resumed, job, asked)


def _steps_left(position: Position, job: Resuming) -> bool:
    last = job.options.epochs - 1
    return position.epoch < last or (position.epoch == last and position.samples < job.train_count)


def _is_ours(resumed: Resumed, job: Resuming) -> bool:
    """Whether the artifact is missing: nobody has written it, or this job has, in an attempt whose host is lost."""
    written = resumed.artifact
    if written is None or written.options != job.artifact.options:
        return True
    return written.job == job.artifact.job != ""


def _differences(resumed: Resumed, job: Resuming) -> dict[str, str]:
    """Both values of what differs, by name. A name that one of the two does not know says nothing."""
    then, now = resumed.options, job.training
    return {
        name: f"{name} was {then[name]}, is {now[name]}" for name in now if name in then and then[name] != now[name]
    }


def _in_batch(job: Resuming) -> set[str]:
    """Options that the global batch stands for."""
    return set(values_of(job.options, {OnResume.BATCH}))


def _warnings(resumed: Resumed, differing: list[str]) -> list[str]:
    if not resumed.options:
        return [
            "warning: the resumed checkpoint is of an earlier version: the lr, batch and other options that it was trained "
            f"with are unknown; fix, if they were others: {ANEW}"
        ]
    if not differing:
        return []
    return [f"warning: resumed checkpoint differs: {'; '.join(differing)}; training goes on with the new; fix: {ANEW}"]


def _nothing_left(resumed: Resumed, job: Resuming, differing: list[str]) -> UserError:
    position, epochs = resumed.progress.position, job.options.epochs
    done = position.epoch + (position.samples >= job.train_count)
    difference = f" ({'; '.join(differing)})" if differing else ""
    return UserError(
        f"checkpoint {resumed.folder} has trained {done} of --epochs {epochs}: no step is left to train{difference}; "
        f"allowed: a checkpoint with steps left; fix: --epochs {done + 1} or more, or {ANEW}"
    )
