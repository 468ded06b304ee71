"""The answers of Describe and List, in SageMaker's shapes. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from algorun_client.aws.fields import Table, required
from algorun_client.request.model import Kind

from .job_record import MESSAGES, LocalJobRecord

ACCOUNT = "000000000000"
REGION = "local"
# Fields of CreateTrainingJob that DescribeTrainingJob repeats.
TRAINING_FIELDS = (
    "AlgorithmSpecification", "CheckpointConfig", "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining",
    "EnableNetworkIsolation", "Environment", "HyperParameters", "InputDataConfig", "OutputDataConfig", "RemoteDebugConfig",
    "ResourceConfig", "RetryStrategy", "RoleArn", "StoppingCondition", "TensorBoardOutputConfig", "VpcConfig",
)  # fmt: skip
PROCESSING_FIELDS = (
    "AppSpecification", "Environment", "NetworkConfig", "ProcessingInputs", "ProcessingOutputConfig", "ProcessingResources",
    "RoleArn", "StoppingCondition",
)  # fmt: skip


def arn(kind: Kind, job: str) -> str:
    """The ARN of a local job."""
    return f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:{kind.value}-job/{job.lower()}"


def training(request: Table, record: LocalJobRecord) -> dict[str, object]:
    """DescribeTrainingJob."""
    job = required(request, "TrainingJobName")
    answer = {key: request[key] for key in TRAINING_FIELDS if key in request}
    answer |= {
        "TrainingJobName": job,
        "TrainingJobArn": arn(Kind.TRAINING, job),
        "TrainingJobStatus": record.status,
        "SecondaryStatus": record.secondary,
        "CreationTime": _time(record.created),
        "LastModifiedTime": _time(record.modified),
        "SecondaryStatusTransitions": _transitions(record),
        "ModelArtifacts": {"S3ModelArtifacts": record.model},
    }
    if record.failure:
        answer["FailureReason"] = record.failure
    if record.started is not None:
        answer["TrainingStartTime"] = _time(record.started)
    if record.ended is not None:
        answer["TrainingEndTime"] = _time(record.ended)
        if record.started is not None:
            answer["TrainingTimeInSeconds"] = round(record.ended - record.started)
            answer["BillableTimeInSeconds"] = round(record.billable_s)
    return answer


def _transitions(record: LocalJobRecord) -> list[dict[str, object]]:
    answer = []
    for each in record.transitions:
        item = {
            "Status": each.status,
            "StartTime": _time(each.start),
            "StatusMessage": MESSAGES.get(each.status, each.status),
        }
        if each.end is not None:
            item["EndTime"] = _time(each.end)
        answer.append(item)
    return answer


def processing(request: Table, record: LocalJobRecord) -> dict[str, object]:
    """DescribeProcessingJob."""
    job = required(request, "ProcessingJobName")
    answer = {key: request[key] for key in PROCESSING_FIELDS if key in request}
    answer |= {
        "ProcessingJobName": job,
        "ProcessingJobArn": arn(Kind.PROCESSING, job),
        "ProcessingJobStatus": record.status,
        "CreationTime": _time(record.created),
        "LastModifiedTime": _time(record.modified),
    }
    if record.failure:
        answer["FailureReason"] = record.failure
    if record.exit_message:
        answer["ExitMessage"] = record.exit_message
    if record.started is not None:
        answer["ProcessingStartTime"] = _time(record.started)
    if record.ended is not None:
        answer["ProcessingEndTime"] = _time(record.ended)
    return answer


def summary(kind: Kind, job: str, record: LocalJobRecord) -> dict[str, object]:
    """One job of ListTrainingJobs or ListProcessingJobs."""
    word = "Training" if kind is Kind.TRAINING else "Processing"
    answer = {
        f"{word}JobName": job,
        f"{word}JobArn": arn(kind, job),
        f"{word}JobStatus": record.status,
        "CreationTime": _time(record.created),
        "LastModifiedTime": _time(record.modified),
    }
    if kind is Kind.TRAINING:
        answer["SecondaryStatus"] = record.secondary
    if record.ended is not None:
        answer[f"{word}EndTime"] = _time(record.ended)
    if kind is Kind.PROCESSING and record.failure:
        answer["FailureReason"] = record.failure
    return answer


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(round(seconds, 3), UTC)
