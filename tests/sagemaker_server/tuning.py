"""SageMaker's tuner: each training job of a tuning job really runs. The points are spread evenly. One that waits for room
starts when somebody asks for the tuning job."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from algorun_client.aws.job_state import ENDED
from algorun_client.common.errors import ApiError, NotFound
from algorun_client.local.log_reading import LocalLogs
from algorun_client.local.platform import LocalPlatform
from algorun_client.request.model import Kind

Answer = Mapping[str, Any]
GROUP = "/aws/sagemaker/TrainingJobs"
OBJECTIVE = "_tuning_objective_metric"  # a hyperparameter that SageMaker adds
LONGEST = 32  # characters of a tuning job's name
# Fields of the definition that are those of CreateTrainingJob too.
SAME = (
    "RoleArn", "InputDataConfig", "VpcConfig", "OutputDataConfig", "ResourceConfig", "StoppingCondition",
    "EnableNetworkIsolation", "EnableManagedSpotTraining", "CheckpointConfig", "RetryStrategy", "Environment",
)  # fmt: skip


class Tuning:
    """The tuning jobs of a server; it forgets them when it ends."""

    def __init__(self, platform: LocalPlatform, logs: LocalLogs) -> None:
        self._platform, self._logs = platform, logs
        self._requests: dict[str, Answer] = {}
        self._points: dict[str, dict[str, dict[str, str]]] = {}  # tuning job -> training job -> tuned values
        self._created: dict[str, float] = {}
        self._left: dict[str, list[int]] = {}  # the numbers of points that are still to start
        self._stopped: set[str] = set()

    def create(self, **request: Any) -> Answer:
        """CreateHyperParameterTuningJob."""
        name, config = request["HyperParameterTuningJobName"], request["HyperParameterTuningJobConfig"]
        limits, definition = config["ResourceLimits"], request["TrainingJobDefinition"]
        count = limits["MaxNumberOfTrainingJobs"]
        if name in self._requests:
            raise ApiError("ResourceInUse", f"tuning job {name} exists")
        if len(name) > LONGEST:
            raise ApiError("ValidationException", f"the name {name} is longer than {LONGEST} characters")
        objective = config["HyperParameterTuningJobObjective"]["MetricName"]
        algorithm = definition["AlgorithmSpecification"]
        if objective not in {each["Name"] for each in algorithm.get("MetricDefinitions") or ()}:
            raise ApiError("ValidationException", f"objective metric {objective} is in no metric definition")
        self._requests[name], self._points[name], self._created[name] = request, {}, time.time()
        self._left[name] = list(range(count))
        self._fill(name)
        return {"HyperParameterTuningJobArn": _arn(name)}

    def stop(self, *, HyperParameterTuningJobName: str) -> Answer:
        """StopHyperParameterTuningJob."""
        name = self._known(HyperParameterTuningJobName)
        self._left[name] = []
        self._stopped.add(name)
        for job in self._points[name]:
            if self._platform.describe_training_job(TrainingJobName=job)["TrainingJobStatus"] not in ENDED:
                self._platform.stop_training_job(TrainingJobName=job)
        return {}

    def _known(self, name: str) -> str:
        if name not in self._requests:
            raise NotFound("ResourceNotFound", f"tuning job {name} does not exist")
        return name

    def _fill(self, name: str) -> None:
        """Starts as many jobs as may run at the same time."""
        request = self._requests[name]
        config, definition = request["HyperParameterTuningJobConfig"], request["TrainingJobDefinition"]
        limits, objective = config["ResourceLimits"], config["HyperParameterTuningJobObjective"]["MetricName"]
        count, algorithm = limits["MaxNumberOfTrainingJobs"], definition["AlgorithmSpecification"]
        states = [
            self._platform.describe_training_job(TrainingJobName=job)["TrainingJobStatus"] for job in self._points[name]
        ]
        room = limits["MaxParallelTrainingJobs"] - sum(state not in ENDED for state in states)
        for number in self._left[name][: max(room, 0)]:
            self._left[name].remove(number)
            tuned = dict(_values(config["ParameterRanges"], number, count))
            job = f"{name}-{number + 1:03d}-{hashlib.sha256(str(tuned).encode()).hexdigest()[:8]}"
            static = definition.get("StaticHyperParameters") or {}
            self._platform.accept(Kind.TRAINING, {
                "TrainingJobName": job,
                "AlgorithmSpecification": algorithm,
                "HyperParameters": {**static, **tuned, OBJECTIVE: objective},
                **{key: definition[key] for key in SAME if definition.get(key)},
                "ResourceConfig": definition.get("ResourceConfig") or _instances(definition["HyperParameterTuningResourceConfig"]),
            })  # fmt: skip
            self._points[name][job] = tuned

    def describe(self, *, HyperParameterTuningJobName: str) -> Answer:
        """DescribeHyperParameterTuningJob."""
        name = self._known(HyperParameterTuningJobName)
        self._fill(name)
        request, jobs = self._requests[name], self._summaries(name)
        lowest = request["HyperParameterTuningJobConfig"]["HyperParameterTuningJobObjective"]["Type"] == "Minimize"
        judged = [each for each in jobs if "FinalHyperParameterTuningJobObjectiveMetric" in each]
        judged.sort(key=lambda each: each["FinalHyperParameterTuningJobObjectiveMetric"]["Value"], reverse=not lowest)
        done = [each["TrainingJobStatus"] in ENDED for each in jobs]
        has_ended = all(done) and not self._left[name]
        states = [each["ObjectiveStatus"] for each in jobs]
        answer = {
            **{key: request[key] for key in ("HyperParameterTuningJobName", "HyperParameterTuningJobConfig", "TrainingJobDefinition")},
            "HyperParameterTuningJobArn": _arn(name),
            "HyperParameterTuningJobStatus": self._status(name, has_ended=has_ended, has_value=bool(judged)),
            "CreationTime": self._created[name],
            "TrainingJobStatusCounters": {
                "Completed": sum(each["TrainingJobStatus"] == "Completed" for each in jobs), "InProgress": done.count(False),
                "RetryableError": 0, "NonRetryableError": sum(each["TrainingJobStatus"] == "Failed" for each in jobs),
                "Stopped": sum(each["TrainingJobStatus"] == "Stopped" for each in jobs),
            },
            "ObjectiveStatusCounters": {status: states.count(status) for status in ("Succeeded", "Pending", "Failed")},
        }  # fmt: skip
        if judged:
            answer["BestTrainingJob"] = judged[0]
        elif has_ended:
            answer["FailureReason"] = "No training job emitted the objective metric"
        return answer

    def list_jobs(self, *, HyperParameterTuningJobName: str, **_: Any) -> Answer:
        """ListTrainingJobsForHyperParameterTuningJob."""
        return {"TrainingJobSummaries": self._summaries(self._known(HyperParameterTuningJobName))}

    def _status(self, name: str, *, has_ended: bool, has_value: bool) -> str:
        if name in self._stopped:
            return "Stopped" if has_ended else "Stopping"
        return "InProgress" if not has_ended else "Completed" if has_value else "Failed"

    def _summaries(self, name: str) -> list[dict[str, Any]]:
        config = self._requests[name]["HyperParameterTuningJobConfig"]
        objective = config["HyperParameterTuningJobObjective"]["MetricName"]
        found = []
        for job, tuned in self._points[name].items():
            state = self._platform.describe_training_job(TrainingJobName=job)
            value = self._last_value(name, job, objective) if state["TrainingJobStatus"] in ENDED else None
            failed = "Failed" if state["TrainingJobStatus"] in ENDED else "Pending"
            summary = {
                **{key: state[key] for key in ("TrainingJobName", "TrainingJobArn", "CreationTime", "TrainingJobStatus")},
                "TunedHyperParameters": tuned,
                "ObjectiveStatus": failed if value is None else "Succeeded",
            }  # fmt: skip
            if value is not None:
                summary["FinalHyperParameterTuningJobObjectiveMetric"] = {"MetricName": objective, "Value": value}
            found.append(summary)
        return found

    def _last_value(self, name: str, job: str, objective: str) -> float | None:
        definitions = self._requests[name]["TrainingJobDefinition"]["AlgorithmSpecification"]["MetricDefinitions"]
        pattern = next(each["Regex"] for each in definitions if each["Name"] == objective)
        values = [float(found[1]) for line in self._lines(job) if (found := re.search(pattern, line))]
        return values[-1] if values else None

    def _lines(self, job: str) -> Iterator[str]:
        streams = self._logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"{job}/")["logStreams"]
        for stream in streams:
            given = {"logGroupName": GROUP, "logStreamName": stream["logStreamName"], "startFromHead": True}
            yield from (event["message"] for event in self._logs.get_log_events(**given)["events"])


def _instances(chosen: Mapping[str, Any]) -> Answer:
    """ResourceConfig of the SDK v2's tuner."""
    given = (chosen.get("InstanceConfigs") or [chosen])[0]
    return {key: given[key] for key in ("InstanceType", "InstanceCount", "VolumeSizeInGB") if key in given}


def _values(ranges: Mapping[str, Any], number: int, count: int) -> Iterator[tuple[str, str]]:
    share = (number + 0.5) / count
    for kind in ("ContinuousParameterRanges", "IntegerParameterRanges"):
        for each in ranges.get(kind) or ():
            low, high = float(each["MinValue"]), float(each["MaxValue"])
            is_log = each.get("ScalingType") == "Logarithmic"
            value = math.exp(math.log(low) + share * math.log(high / low)) if is_log else low + share * (high - low)
            yield each["Name"], str(round(value) if kind.startswith("Integer") else value)
    for each in ranges.get("CategoricalParameterRanges") or ():
        yield each["Name"], each["Values"][number % len(each["Values"])]


def _arn(name: str) -> str:
    return f"arn:aws:sagemaker:us-east-1:123456789012:hyper-parameter-tuning-job/{name}"
