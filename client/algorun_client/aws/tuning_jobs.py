"""Tuning jobs: SageMaker chooses points of a space, and creates a training job for each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from algorun.job.hyperparameter_groups import TUNED

from .api import Answer
from .boto_errors import as_api_errors
from .boto_types import Client
from .fields import inner, number, required, tables, text, texts, time

ENDED = ("Completed", "Failed", "Stopped", "Deleting", "DeleteFailed")  # one that runs cannot be deleted
PAGE = 100  # of a list
RANGES = ("ContinuousParameterRanges", "IntegerParameterRanges", "CategoricalParameterRanges")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningJob:
    """What SageMaker says of a tuning job."""

    name: str
    status: str
    reason: str  # why it has failed, "" otherwise
    created: datetime | None
    limit: int  # the most jobs that it creates
    completed: int
    running: int
    failed: int
    stopped: int
    metric: str  # of its objective
    lowest: bool  # True if the lowest value of it is the best one
    parameters: tuple[str, ...]  # that it chooses
    in_words: frozenset[str]  # those of `parameters` whose values stand in words of the program
    is_hyperband: bool

    @property
    def has_ended(self) -> bool:
        """True if it creates no further job, and none of its jobs runs."""
        return self.status in ENDED

    @property
    def counted(self) -> str:
        """How many of its jobs are where, in words."""
        named = {"completed": self.completed, "running": self.running, "failed": self.failed, "stopped": self.stopped}
        told = ", ".join(f"{count} {word}" for word, count in named.items() if count)
        return f"{told or 'none yet'} of {self.limit} job{'s'[: self.limit != 1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedJob:
    """A training job of a tuning job."""

    job: str
    status: str
    parameters: dict[str, str]
    value: float | None  # of the objective, as SageMaker counts it; None until the job has ended, or without one


class TuningJobs:
    """The calls about tuning jobs, over boto3's client. Each raises ApiError."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, request: dict[str, object]) -> None:
        """Raises Exists if the name is in use."""
        with as_api_errors("CreateHyperParameterTuningJob"):
            self._client.create_hyper_parameter_tuning_job(**request)

    def describe(self, name: str) -> TuningJob:
        """Raises NotFound."""
        with as_api_errors("DescribeHyperParameterTuningJob"):
            return _job(self._client.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName=name))

    def stop(self, name: str) -> None:
        """Asks for a stop; the jobs end later."""
        with as_api_errors("StopHyperParameterTuningJob"):
            self._client.stop_hyper_parameter_tuning_job(HyperParameterTuningJobName=name)

    def jobs(self, name: str) -> list[TunedJob]:
        """Its training jobs, the oldest first."""
        query: dict[str, object] = {"HyperParameterTuningJobName": name, "MaxResults": PAGE}
        query |= {"SortBy": "CreationTime", "SortOrder": "Ascending"}
        found: list[TunedJob] = []
        with as_api_errors("ListTrainingJobsForHyperParameterTuningJob"):
            while True:
                answer = self._client.list_training_jobs_for_hyper_parameter_tuning_job(**query)
                found += map(_tuned, tables(answer, "TrainingJobSummaries"))
                if not text(answer, "NextToken"):
                    return found
                query["NextToken"] = text(answer, "NextToken")


def _job(answer: Answer) -> TuningJob:
    counts = inner(answer, "TrainingJobStatusCounters")
    config = inner(answer, "HyperParameterTuningJobConfig")
    limits, objective = inner(config, "ResourceLimits"), inner(config, "HyperParameterTuningJobObjective")
    ranges = inner(config, "ParameterRanges")
    return TuningJob(
        name=required(answer, "HyperParameterTuningJobName"),
        status=required(answer, "HyperParameterTuningJobStatus"),
        reason=text(answer, "FailureReason"),
        created=time(answer, "CreationTime"),
        limit=number(limits, "MaxNumberOfTrainingJobs") or 0,
        completed=number(counts, "Completed") or 0,
        running=number(counts, "InProgress") or 0,
        failed=(number(counts, "NonRetryableError") or 0) + (number(counts, "RetryableError") or 0),
        stopped=number(counts, "Stopped") or 0,
        metric=text(objective, "MetricName"),
        lowest=text(objective, "Type") == "Minimize",
        parameters=tuple(text(each, "Name") for kind in RANGES for each in tables(ranges, kind)),
        in_words=_in_words(texts(inner(answer, "TrainingJobDefinition"), "StaticHyperParameters")),
        is_hyperband=text(config, "Strategy") == "Hyperband",
    )


def _in_words(static: Mapping[str, str]) -> frozenset[str]:
    """Another tool's tuning job has no such key; one that somebody has damaged counts as none."""
    try:
        found = json.loads(static.get(TUNED, "[]"))
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(map(str, found)) if isinstance(found, list) else frozenset()


def _tuned(answer: Answer) -> TunedJob:
    value = inner(answer, "FinalHyperParameterTuningJobObjectiveMetric").get("Value")
    return TunedJob(
        job=required(answer, "TrainingJobName"),
        status=required(answer, "TrainingJobStatus"),
        parameters=texts(answer, "TunedHyperParameters"),
        value=float(value) if isinstance(value, int | float) else None,
    )
