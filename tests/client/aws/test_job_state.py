"""Answers of Describe, complete, young and wrong, as one type."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from algorun_client.aws.job_state import (
    InstanceGroups,
    JobPhase,
    JobTimes,
    Left,
    Output,
    read_processing,
    read_training,
)
from algorun_client.common.errors import ApiError

T0, T1, T2 = (datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(3))


def test_a_training_job():
    state = read_training(
        {
            "TrainingJobName": "job",
            "TrainingJobStatus": "Completed",
            "SecondaryStatus": "Completed",
            "CreationTime": T0,
            "TrainingEndTime": T2,
            "TrainingTimeInSeconds": 9,
            "BillableTimeInSeconds": 7,
            "ResourceConfig": {
                "InstanceGroups": [
                    {"InstanceGroupName": "a", "InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2},
                    {"InstanceGroupName": "b", "InstanceType": "ml.m5.large", "InstanceCount": 1},
                ]
            },
            "OutputDataConfig": {"S3OutputPath": "s3://b/out/"},
            "CheckpointConfig": {"S3Uri": "s3://b/state"},
            "ModelArtifacts": {"S3ModelArtifacts": "s3://b/m.tar.gz"},
            "AlgorithmSpecification": {"MetricDefinitions": [{"Name": "loss", "Regex": "x"}]},
            "Environment": {"ALGORUN_REQUEST_ID": "id"},
            "SecondaryStatusTransitions": [
                {"Status": "Training", "StartTime": T0, "EndTime": T1},
                {"Status": "Completed", "StartTime": T1, "EndTime": T1},
            ],
        }
    )
    assert state.times == JobTimes(created=T0, ended=T2, billable_s=7, training_s=9)
    assert state.hosts == InstanceGroups((("ml.p4d.24xlarge", 2), ("ml.m5.large", 1)))
    assert (state.hosts.count, state.hosts.instance) == (3, "ml.p4d.24xlarge + ml.m5.large")
    assert state.left == Left(
        "s3://b/m.tar.gz", (Output("output", "s3://b/out/job/output/output.tar.gz"),), "s3://b/state/"
    )
    assert state.phases == (JobPhase("Training", T0, T1),)
    assert (state.metrics, state.request_id) == ((("loss", "x"),), "id")


@pytest.mark.parametrize(
    ("status", "has_ended"), [("InUse", False), ("Available", False), ("Reused", True), ("Terminated", True)]
)
def test_hosts_are_kept_until_another_job_has_them_or_they_are_given_back(status, has_ended):
    pool = {"Status": status, "ResourceRetainedBillableTimeInSeconds": 60}
    times = read_training({"TrainingJobName": "job", "TrainingJobStatus": "Completed", "WarmPoolStatus": pool}).times
    assert (times.kept_s, times.keeping_has_ended) == (60, has_ended)


@pytest.mark.parametrize(
    "empty", [{}, {"ResourceConfig": None, "OutputDataConfig": {}, "SecondaryStatusTransitions": None}]
)
def test_a_job_of_which_little_is_known_yet(empty):
    state = read_training({"TrainingJobName": "job", "TrainingJobStatus": "InProgress", **empty})
    assert (state.hosts, state.times, state.left, state.phases) == (InstanceGroups(), JobTimes(), Left(), ())


def test_a_processing_job():
    outputs = [{"OutputName": "a", "S3Output": {"S3Uri": "s3://b/a"}}, {"OutputName": "features"}]
    answer: dict[str, Any] = {
        "ProcessingJobName": "job",
        "ProcessingJobStatus": "Failed",
        "CreationTime": T0.timestamp(),
        "ProcessingStartTime": T1,
        "LastModifiedTime": T2,
        "ProcessingResources": {"ClusterConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2}},
        "ProcessingOutputConfig": {"Outputs": outputs},
        "ExitMessage": "broken",
    }
    state = read_processing(answer)
    assert state.phases == (JobPhase("Starting", T0, T1), JobPhase("Processing", T1, T2))
    assert (state.times.ended, state.hosts, state.exit_message) == (T2, InstanceGroups((("ml.m5.large", 2),)), "broken")
    assert state.left == Left(outputs=(Output("a", "s3://b/a/"),))


@pytest.mark.parametrize("read", [read_training, read_processing])
@pytest.mark.parametrize("answer", [{}, {"TrainingJobName": 3, "ProcessingJobName": None}])
def test_an_answer_of_something_else_is_one_error(read, answer):
    with pytest.raises(ApiError, match="InvalidAnswer: the answer has no "):
        read(answer)


def of_phases(*names: str, **more: Any):
    transitions = [{"Status": name, "StartTime": T0, "EndTime": T1} for name in names]
    return read_training(
        {
            "TrainingJobName": "job",
            "TrainingJobStatus": "InProgress",
            "SecondaryStatusTransitions": transitions,
            **more,
        }
    )


@pytest.mark.parametrize(
    ("names", "interruptions", "retries"),
    [
        (("Starting", "Pending", "Starting", "Downloading", "Training", "Uploading", "Completed"), 0, 0),
        (("Starting", "Downloading", "Training", "Interrupted", "Starting", "Training"), 1, 0),
        (("Starting", "Training", "Interrupted", "Pending", "Starting", "Training", "Interrupted"), 2, 0),
        (("Starting", "Downloading", "Training", "Starting", "Downloading", "Training"), 0, 1),
        (("Starting", "Training", "Pending", "Starting", "Training", "Interrupted", "Starting"), 1, 1),
    ],
)
def test_interruptions_of_spot_instances_and_retries_of_sagemaker_are_told_apart(names, interruptions, retries):
    state = of_phases(*names)
    assert (state.interruptions, state.retries) == (interruptions, retries)


@pytest.mark.parametrize(
    ("spot", "billable", "training", "saving"),
    [
        (True, 100, 500, 0.8),  # AWS's own example
        (True, 500, 500, 0.0),
        (True, 600, 500, None),
        (True, None, 500, None),
        (True, 100, 0, None),
        (False, 100, 500, None),
    ],
)
def test_the_saving_is_that_of_spot_jobs_alone(spot, billable, training, saving):
    more = {"BillableTimeInSeconds": billable, "TrainingTimeInSeconds": training, "EnableManagedSpotTraining": spot}
    assert of_phases("Training", **more).saving == saving
