"""The arguments of CreateHyperParameterTuningJob: a training request whose parameters SageMaker's tuner chooses. Pure.

Source: the SageMaker API reference (HyperParameterTrainingJobDefinition, HyperParameterTuningJobConfig).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from algorun.common.errors import UserError
from algorun.job.hyperparameters import is_platform_key
from algorun_client.request import names
from algorun_client.request.model import FORMAT_TUNED, Json, Kind, Request
from algorun_client.submit.read import sweep
from algorun_client.submit.read.program import ARGS_FILE, Started
from algorun_client.submit.read.spec import TaskSpec, Where
from algorun_client.submit.read.tune import Dimension, Method, TaskTune, ValueRange

from . import parts, rules

# Fields of CreateTrainingJob that a tuner's definition of its training jobs has too. Without CheckpointConfig: it would be
# the same folder for all jobs, and AWS does not say that a job gets a folder of its own in it.
SAME = (
    "AlgorithmSpecification", "RoleArn", "InputDataConfig", "VpcConfig", "OutputDataConfig", "ResourceConfig",
    "StoppingCondition", "RetryStrategy", "EnableNetworkIsolation", "Environment",
)  # fmt: skip
STRATEGIES = {Method.RANDOM: "Random", Method.BAYESIAN: "Bayesian", Method.HYPERBAND: "Hyperband"}


def check(spec: TaskSpec, asked: TaskTune) -> None:
    """Raises UserError for what a task has and the jobs of a tuner cannot have."""
    resources, where = spec.resources, f"{asked.where} tuner"
    refused = (
        (spec.where is not Where.AWS, "SageMaker's tuner does not run on this machine", "tuner = 'algorun'"),
        (spec.kind is not Kind.TRAINING, "SageMaker tunes training jobs alone", "tuner = 'algorun'"),
        (resources.spot, "its jobs have no checkpoint folder in S3 of their own, so one on spot hosts would begin anew", "--no-spot"),
        (bool(resources.groups), "its jobs have hosts of one kind", "--instance and --hosts for --instance-group"),
        (resources.keep_alive_s is not None, "its jobs keep no hosts", "drop --keep-alive"),
        (spec.launch.hold_s is not None, "nobody gets into the hosts of its jobs", "drop --hold-on-failure"),
        (spec.tensorboard, "its jobs have no TensorBoard output", "drop --tensorboard"),
        (bool(spec.program.shell), "it sets words of a program, and --shell has one text", "name a PROGRAM"),
    )  # fmt: skip
    for is_asked, text, fix in refused:
        if is_asked:
            raise UserError(where, f"task {spec.task!r}: {text}", fix=fix)
    for name in asked.space:
        if is_platform_key(name):
            raise UserError(f"{asked.where} space", f"{name!r} is a hyperparameter of the platform", fix="rename it")
    _hyperparameters(spec, asked)


def marked(spec: TaskSpec, asked: TaskTune) -> TaskSpec:
    """The task with `{tuned:NAME}` for each parameter; the launcher puts a job's own values there."""
    return sweep.with_values(spec, asked.where, {name: _mark(name) for name in asked.space})


def points(spec: TaskSpec, asked: TaskTune) -> int:
    """How many jobs the tuner may create: as many as --max-cost allows at the most that each can cost."""
    most, limit = rules.most_cost(spec.resources), spec.resources.max_cost
    if limit is None or not most:
        return asked.points
    return min(asked.points, int(limit / most))  # rules.check refuses a limit below the cost of one job


def create(
    request: Request, started: Started, spec: TaskSpec, asked: TaskTune, number: int, image_format: int | None
) -> dict[str, Json]:
    """The arguments. Raises UserError.

    `request`: of the training job at the first values. `started`: the words of `marked`. `image_format`: the highest one that
    the image's launcher reads; None if that is unknown.
    """
    definition = {name: request.create[name] for name in SAME if name in request.create}
    output = {"S3OutputPath": f"{request.address.uri}/tune/{number:04d}/output", **parts.kms(spec, "KmsKeyId")}
    if asked.goal.metric not in [_table(each)["Name"] for each in parts.metrics(spec)[0]]:
        raise UserError(
            f"{asked.where} goal", f"{asked.goal.metric!r} is none of the {rules.MOST_METRICS} metrics that SageMaker takes of a task",
            fix="drop some of the task's own metrics",
        )  # fmt: skip
    count = points(spec, asked)
    static = _static(request.create["HyperParameters"], started, spec, asked)
    environment = dict(_table(request.create["Environment"]))
    if "algorun_tuned" in static:
        if image_format is not None and image_format < FORMAT_TUNED:
            raise UserError(
                "--image",
                f"{spec.image} is too old for tuner = 'sagemaker'",
                fix="name an image of this version or a newer one",
            )
        environment[parts.FORMAT_NAME] = str(FORMAT_TUNED)
    made: dict[str, Json] = {
        "HyperParameterTuningJobName": names.tuning_job_name(request.address, number),
        "HyperParameterTuningJobConfig": {
            "Strategy": STRATEGIES[asked.method],
            "HyperParameterTuningJobObjective": {
                "Type": "Minimize" if asked.goal.lowest else "Maximize",
                "MetricName": asked.goal.metric,
            },
            "ResourceLimits": {
                "MaxNumberOfTrainingJobs": count,
                "MaxParallelTrainingJobs": min(asked.parallel, count),
            },
            "ParameterRanges": _ranges(asked.space),
            "TrainingJobEarlyStoppingType": "Auto" if asked.by_median else "Off",
            "RandomSeed": asked.seed,
        },
        "TrainingJobDefinition": {
            **definition,
            "OutputDataConfig": output,
            "StaticHyperParameters": static,
            "Environment": environment,
        },
    }
    if asked.method is Method.HYPERBAND:
        config = _table(made["HyperParameterTuningJobConfig"])
        made["HyperParameterTuningJobConfig"] = {
            **config,
            "StrategyConfig": {"HyperbandStrategyConfig": {"MinResource": asked.least, "MaxResource": asked.steps}},
        }
    if "Tags" in request.create:
        made["Tags"] = request.create["Tags"]
    return made


def _static(given: Json, started: Started, spec: TaskSpec, asked: TaskTune) -> dict[str, Json]:
    """The hyperparameters that all jobs share."""
    if ARGS_FILE in started.added:
        raise UserError(
            f"{asked.where} tuner", "the program's words are too many for hyperparameters", fix="fewer or shorter words"
        )
    found = {name: value for name, value in _table(given).items() if name not in asked.space}
    in_words = [name for name in asked.space if any(_mark(name) in word for word in started.args)]
    if in_words:
        found |= {"algorun_args": started.args_json, "algorun_tuned": json.dumps(in_words)}
    return found


def _hyperparameters(spec: TaskSpec, asked: TaskTune) -> None:
    """Raises UserError for a parameter that is a part of a hyperparameter: the tuner sets whole ones."""
    for name, text in marked(spec, asked).hyperparameters.items():
        for parameter in asked.space:
            if _mark(parameter) in text and (name != parameter or text != _mark(parameter)):
                raise UserError(
                    f"hyperparameter {name}", f"holds {{sweep:{parameter}}}, and SageMaker's tuner sets whole hyperparameters",
                    allowed="{sweep:NAME} in the words of the program", fix="move it there, or tuner = 'algorun'",
                )  # fmt: skip


def _ranges(space: Mapping[str, Dimension]) -> dict[str, Json]:
    found: dict[str, list[Json]] = {}
    for kind, made in _each_range(space):
        found.setdefault(kind, []).append(made)
    return dict(found)


def _each_range(space: Mapping[str, Dimension]) -> Iterator[tuple[str, dict[str, Json]]]:
    for name, each in space.items():
        if isinstance(each, ValueRange):
            low, high = each.ends
            scaling = "Logarithmic" if each.is_log else "Linear"
            kind = "IntegerParameterRanges" if each.is_whole else "ContinuousParameterRanges"
            yield kind, {"Name": name, "MinValue": low, "MaxValue": high, "ScalingType": scaling}
        else:
            yield "CategoricalParameterRanges", {"Name": name, "Values": list(each.texts)}


def _mark(name: str) -> str:
    return f"{{tuned:{name}}}"


def _table(value: Json) -> dict[str, Json]:
    assert isinstance(value, dict)
    return value
