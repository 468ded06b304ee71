"""The arguments of CreateHyperParameterTuningJob: a training request whose parameters SageMaker's tuner chooses. Pure.

Source: the SageMaker API reference (HyperParameterTrainingJobDefinition, HyperParameterTuningJobConfig).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from algorun.common.errors import UserError
from algorun.job.hyperparameters import is_platform_key
from algorun_client.request import names
from algorun_client.request.model import FORMAT_TUNED, Json, Kind, Request
from algorun_client.submit.read import sweep
from algorun_client.submit.read.program import ARGS_FILE, Started
from algorun_client.submit.read.spec import TaskSpec, Where
from algorun_client.submit.read.tune import Method, TaskTune, ValueChoices, ValueRange

from . import parts, rules

# Fields of CreateTrainingJob that a tuner's definition of its training jobs has too. Without CheckpointConfig: it would be
# the same folder for all jobs, and AWS does not say that a job gets a folder of its own in it.
SAME = (
    "AlgorithmSpecification", "RoleArn", "InputDataConfig", "VpcConfig", "OutputDataConfig", "ResourceConfig",
    "StoppingCondition", "RetryStrategy", "EnableNetworkIsolation", "Environment",
)  # fmt: skip
# Limits of SageMaker's automatic model tuning, which botocore's model does not have, or has without a word of the job file.
MOST_PARAMETERS = 30
MOST_VALUES = 30  # of a choice
LONGEST_TEXT = 256  # characters of a value, and of a parameter's name
MOST_PARALLEL = 100
MOST_METRICS = 20  # of a tuning job; a training job has up to 40
MOST_HYPERPARAMETERS = 99  # static and tuned ones: SageMaker adds one to make 100
MOST_STEPS = 20_000  # of hyperband
MOST_VARIABLES = 48
LINE_ENDS = "\n\r\u0085\u2028\u2029"
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
    _sizes(spec, asked)
    _space(spec, asked)
    _hyperparameters(spec, asked)


def _sizes(spec: TaskSpec, asked: TaskTune) -> None:
    """Raises UserError for more than SageMaker's tuner takes."""
    checked = (
        ("space", "parameters", len(asked.space), MOST_PARAMETERS),
        ("parallel", "jobs at the same time", min(asked.parallel, asked.points), MOST_PARALLEL),
        ("steps", "steps", asked.steps, MOST_STEPS),
    )
    for key, unit, count, most in checked:
        if count > most:
            raise UserError(
                f"{asked.where} {key}", f"{count:,} {unit}", allowed=f"up to {most:,} with SageMaker's tuner",
                fix="fewer, or tuner = 'algorun'",
            )  # fmt: skip
    if len(spec.metrics) > MOST_METRICS:
        raise UserError(
            "--metric", f"{len(spec.metrics)} metrics", allowed=f"up to {MOST_METRICS} with SageMaker's tuner",
            fix=f"drop {len(spec.metrics) - MOST_METRICS}",
        )  # fmt: skip


def _space(spec: TaskSpec, asked: TaskTune) -> None:
    """Raises UserError for a parameter or a value that cannot be sent, or that would get to the program as another one."""
    for name, each in asked.space.items():
        where = f"{asked.where} space.{name}"
        if is_platform_key(name):
            raise UserError(f"{asked.where} space", f"{name!r} is a hyperparameter of the platform", fix="rename it")
        texts = () if isinstance(each, ValueRange) else each.texts
        if len(texts) > MOST_VALUES:
            raise UserError(
                f"{where} values", f"{len(texts)} values", allowed=f"up to {MOST_VALUES} with SageMaker's tuner",
                fix="fewer values, a range, or tuner = 'algorun'",
            )  # fmt: skip
        for text in (name, *texts):
            if len(text) > LONGEST_TEXT or any(char in text for char in LINE_ENDS):
                raise UserError(
                    where, f"{text[:60]!r} has {len(text)} characters",
                    allowed=f"up to {LONGEST_TEXT} without an end of a line, for SageMaker's tuner",
                    fix="shorten it, or tuner = 'algorun'",
                )  # fmt: skip
        for word in (*(text for _, text in spec.texts), *_all_texts(asked)):
            if _mark(name) in word:
                raise UserError(
                    where, f"{word!r} holds {_mark(name)}, which stands for a value of SageMaker's tuner",
                    fix=f"{{sweep:{name}}} for the value; another text otherwise",
                )  # fmt: skip


def _all_texts(asked: TaskTune) -> list[str]:
    return [text for each in asked.space.values() if not isinstance(each, ValueRange) for text in each.texts]


def marked(spec: TaskSpec, asked: TaskTune) -> TaskSpec:
    """The task with `{tuned:NAME}` for each parameter; the launcher puts a job's own values there."""
    return sweep.with_values(spec, asked.where, {name: _mark(name) for name in asked.space})


def points(spec: TaskSpec, asked: TaskTune) -> int:
    """How many jobs the tuner may create: as many as --max-cost allows at the most that each can cost."""
    most, limit = rules.most_cost(spec.resources), spec.resources.max_cost
    if limit is None or not most:
        return asked.points
    # rules.check refuses a limit below the cost of one job. 0.3 / 0.1 is a little less than 3.
    return min(asked.points, int(limit / most + 1e-9))


def create(
    request: Request, started: Started, spec: TaskSpec, asked: TaskTune, number: int, image_format: int | None
) -> dict[str, Json]:
    """The arguments. Raises UserError.

    `request`: of the training job at the first values. `started`: the words of `marked`. `image_format`: the highest one that
    the image's launcher reads; None if that is unknown.
    """
    definition = {name: request.create[name] for name in SAME if name in request.create}
    output = {"S3OutputPath": f"{request.address.uri}/tune/{number:04d}/output", **parts.kms(spec, "KmsKeyId")}
    algorithm = _table(definition["AlgorithmSpecification"])
    definition["AlgorithmSpecification"] = {**algorithm, "MetricDefinitions": _metrics(spec, asked)}
    count = points(spec, asked)
    in_words = [name for name in asked.space if any(_mark(name) in word for word in started.args)]
    static = _static(request.create["HyperParameters"], started, asked, in_words)
    environment = dict(_table(request.create["Environment"]))
    if "algorun_tuned" in static:
        if image_format is not None and image_format < FORMAT_TUNED:
            raise UserError(
                "--image",
                f"{spec.image} is too old for tuner = 'sagemaker'",
                fix="name an image of this version or a newer one",
            )
        environment[parts.FORMAT_NAME] = str(FORMAT_TUNED)
    if len(environment) > MOST_VARIABLES:
        raise UserError(
            "--env", f"{len(environment)} variables with those of algorun",
            allowed=f"up to {MOST_VARIABLES} with SageMaker's tuner", fix=f"drop {len(environment) - MOST_VARIABLES}",
        )  # fmt: skip
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
            "ParameterRanges": _ranges(asked, in_words),
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


def _metrics(spec: TaskSpec, asked: TaskTune) -> list[Json]:
    """The task's own metrics, and as many of algorun's as fit; that of the goal is the first one."""
    listed = sorted(parts.metrics(spec)[0], key=lambda each: _table(each)["Name"] != asked.goal.metric)
    own = [each for each in listed if _table(each)["Name"] in (asked.goal.metric, *spec.metrics)]
    return [*own, *(each for each in listed if each not in own)][:MOST_METRICS]


def _static(given: Json, started: Started, asked: TaskTune, in_words: list[str]) -> dict[str, Json]:
    """The hyperparameters that all jobs share. `in_words`: the parameters that stand in words of the program."""
    found = {name: value for name, value in _table(given).items() if name not in asked.space}
    if in_words and (ARGS_FILE in started.added or "algorun_args_file" in found):
        raise UserError(
            f"{asked.where} tuner", "the program's words are too many for hyperparameters", fix="fewer or shorter words"
        )
    if in_words:
        found |= {"algorun_args": started.args_json, "algorun_tuned": json.dumps(in_words)}
    if len(found) + len(asked.space) > MOST_HYPERPARAMETERS:
        raise UserError(
            "--hyperparameter", f"{len(found) + len(asked.space)} with those of the space and of algorun",
            allowed=f"up to {MOST_HYPERPARAMETERS} with SageMaker's tuner", fix="fewer, or words of the program instead",
        )  # fmt: skip
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


def _ranges(asked: TaskTune, in_words: Sequence[str]) -> dict[str, Json]:
    found: dict[str, list[Json]] = {}
    for kind, made in _each_range(asked, in_words):
        found.setdefault(kind, []).append(made)
    return dict(found)


def _each_range(asked: TaskTune, in_words: Sequence[str]) -> Iterator[tuple[str, dict[str, Json]]]:
    for name, each in asked.space.items():
        if isinstance(each, ValueRange):
            low, high = each.ends
            scaling = "Logarithmic" if each.is_log else "Linear"
            kind = "IntegerParameterRanges" if each.is_whole else "ContinuousParameterRanges"
            yield kind, {"Name": name, "MinValue": low, "MaxValue": high, "ScalingType": scaling}
        else:
            yield "CategoricalParameterRanges", {"Name": name, "Values": _values(asked, name, each, in_words)}


def _values(asked: TaskTune, name: str, choices: ValueChoices, in_words: Sequence[str]) -> list[Json]:
    """What the tuner sends. Words of the program get its texts as they are; hyperparameters are decoded on their way, so a text
    such as 1.10 needs quotes."""
    if name in in_words:
        return list(choices.texts)
    sent = [sweep.as_hyperparameter(name, text) for text in choices.texts]
    wrong = [text for at, text in enumerate(sent) if len(text) > LONGEST_TEXT or text in sent[:at]]
    if wrong:
        fault = f"has {len(wrong[0])} characters with its quotes" if len(wrong[0]) > LONGEST_TEXT else "comes twice"
        raise UserError(
            f"{asked.where} space.{name} values", f"{wrong[0][:60]} {fault}",
            allowed=f"other values, of up to {LONGEST_TEXT} characters, with SageMaker's tuner", fix="drop it",
        )  # fmt: skip
    return list(sent)


def _mark(name: str) -> str:
    return f"{{tuned:{name}}}"


def _table(value: Json) -> dict[str, Json]:
    assert isinstance(value, dict)
    return value
