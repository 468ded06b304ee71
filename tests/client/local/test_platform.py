"""What the local platform answers and refuses, without a job that runs."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from algorun.common.errors import UserError
from algorun_client.common.errors import ApiError, Exists, NotFound
from algorun_client.local import gpus
from algorun_client.local.job_description import local_text
from algorun_client.local.job_folder import JobFolder
from algorun_client.local.job_record import LocalJobRecord, failure_reason
from algorun_client.local.platform import LocalPlatform
from algorun_client.request.model import Kind
from tests.client.local.local_jobs import BUCKET, PROCESSING, TRAINING, Local, channel, processing, training


@pytest.fixture
def local(tmp_path):
    return Local(tmp_path / "root")


def failed(local: Local, job: str) -> None:
    """A job that has ended already."""
    local.platform.accept(Kind.TRAINING, training(local.store, job, ""), failure="CapacityError: none")


def test_a_name_is_used_once(local):
    failed(local, "once")
    with pytest.raises(Exists, match="ResourceInUse: Training job names must be unique"):
        local.platform.create_training_job(**training(local.store, "Once", ""))
    assert local.describe("once")["FailureReason"] == "CapacityError: none"


WRONG = {
    "a name of 64 characters": {"TrainingJobName": "x" * 64},
    "a name with an underscore": {"TrainingJobName": "a_b"},
    "a 101st hyperparameter": {"HyperParameters": {f"k{number}": "" for number in range(101)}},
    "a long value": {"HyperParameters": {"k": "x" * 2501}},
    "41 metrics": {
        "AlgorithmSpecification": {
            "TrainingInputMode": "File",
            "MetricDefinitions": [{"Name": f"m{number}", "Regex": "x"} for number in range(41)],
        }
    },
    "a long variable": {"Environment": {"NAME": "x" * 513}},
    "an unknown word": {"Hosts": 3},
    "a word for a number": {"ResourceConfig": {"InstanceCount": "2"}},
    "no host": {"ResourceConfig": {"InstanceCount": 0}},
    "an unknown mode": {"AlgorithmSpecification": {"TrainingInputMode": "Slow"}},
    "a wait below the runtime": {
        "EnableManagedSpotTraining": True,
        "StoppingCondition": {"MaxRuntimeInSeconds": 600, "MaxWaitTimeInSeconds": 599},
    },
    "spot without a wait": {"EnableManagedSpotTraining": True},
    "no time": {"StoppingCondition": {"MaxRuntimeInSeconds": 0}},
    "a channel twice": {"InputDataConfig": [channel("a", f"{BUCKET}/code/")] * 2},
    "an input without objects": {"InputDataConfig": [channel("a", f"{BUCKET}/none/")]},
    "no output": {"OutputDataConfig": {}},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_sagemaker_refuses_is_refused(local, wrong):
    with pytest.raises(ApiError, match="CreateTrainingJob: ValidationException"):
        local.platform.create_training_job(**{**training(local.store, "job", ""), **wrong})
    assert JobFolder.all(local.root, Kind.TRAINING) == []


def test_role_image_and_instance_are_needed_by_the_strict_platform_alone(local):
    strict = LocalPlatform(local.root, local.store, strict=True)
    with pytest.raises(ApiError, match=r"'RoleArn'.*is missing"):
        strict.create_training_job(**training(local.store, "job", ""))
    with pytest.raises(ApiError, match=r"RoleArn") as refused:
        strict.create_processing_job(**processing("job", "true"))
    assert "ImageUri" in str(refused.value)


FSX = {
    "FileSystemId": "fs-0123456789",
    "FileSystemAccessMode": "ro",
    "FileSystemType": "FSxLustre",
    "DirectoryPath": "/x",
}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            {"ChannelName": "a", "DataSource": {"FileSystemDataSource": FSX}},
            "input a: on this machine the file system is",
        ),
        ({**channel("a", f"{BUCKET}/code/"), "InputMode": "Pipe"}, "input a: Pipe mode needs AWS"),
        (
            channel("a", f"{BUCKET}/code/", S3DataType="AugmentedManifestFile"),
            "S3DataType AugmentedManifestFile needs AWS",
        ),
    ],
)
def test_inputs_that_only_aws_has_are_refused_by_name(local, wrong, text):
    with pytest.raises(UserError, match=text):
        local.platform.create_training_job(**training(local.store, "job", "", InputDataConfig=[wrong]))


def test_a_bucket_without_a_folder_is_an_error_before_create(local):
    request = training(local.store, "job", "", InputDataConfig=[channel("a", "s3://far-away/images")])
    with pytest.raises(
        UserError, match=r"input a: s3://far-away/images: .*s3/far-away, which does not exist; fix: copy"
    ):
        local.platform.create_training_job(**request)
    with pytest.raises(NotFound):
        local.describe("job")


@pytest.mark.parametrize("folder", ["/data", "/opt/ml/../x"])
def test_folders_outside_of_opt_ml_are_refused(local, folder):
    checkpoints = {"S3Uri": f"{BUCKET}/state/", "LocalPath": folder}
    with pytest.raises(UserError, match="LocalPath"):
        local.platform.create_training_job(**training(local.store, "job", "", CheckpointConfig=checkpoints))


def test_an_unknown_job_and_one_that_has_ended(local):
    for name in ("none", "../training/none", ""):
        with pytest.raises(NotFound, match="not found"):
            local.describe(name)
        with pytest.raises(NotFound, match="Could not find"):
            local.platform.stop_processing_job(ProcessingJobName=name)
    failed(local, "ended")
    with pytest.raises(ApiError, match="the training job is in status Failed"):
        local.platform.stop_training_job(TrainingJobName="ended")


def test_a_job_of_another_version_is_shown(local):
    failed(local, "older")
    record = JobFolder.of(local.root, Kind.TRAINING, "older").path / "record.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "restarts": 2, "newer": {}}))
    assert local.describe("older")["TrainingJobStatus"] == "Failed"
    assert len(local.platform.list_training_jobs()["TrainingJobSummaries"]) == 1


def test_jobs_are_listed_newest_first_in_pages(local):
    names = [f"job-{number}" for number in range(5)]
    for name in [*names, "other"]:
        failed(local, name)
        time.sleep(0.002)
    query = {"NameContains": "JOB", "MaxResults": 2, "StatusEquals": "Failed"}
    found, token = [], {}
    for _ in range(3):
        answer = local.platform.list_training_jobs(**query, **token)
        found += [each["TrainingJobName"] for each in answer["TrainingJobSummaries"]]
        token = {"NextToken": answer.get("NextToken")}
    assert found == names[::-1]
    assert token == {"NextToken": None}
    by_name = local.platform.list_training_jobs(SortBy="Name", SortOrder="Ascending")
    assert [each["TrainingJobName"] for each in by_name["TrainingJobSummaries"]] == [*names, "other"]
    assert local.platform.list_processing_jobs() == {"ProcessingJobSummaries": []}


def streams(local: Local, count: int, lines: int) -> None:
    """A job with this number of streams and lines."""
    failed(local, "logs")
    folder = JobFolder.of(local.root, Kind.TRAINING, "logs").logs
    folder.mkdir()
    for number in range(1, count + 1):
        events = [
            {"timestamp": 1000 + line, "ingestionTime": 9, "message": f"{number}:{line}"} for line in range(lines)
        ]
        (folder / f"algo-{number}-1").write_text("".join(f"{json.dumps(event)}\n" for event in events))


def test_sixty_streams_come_in_two_pages(local):
    with pytest.raises(NotFound, match="log group"):
        local.logs.describe_log_streams(logGroupName=TRAINING)
    streams(local, 60, 2)
    first = local.logs.describe_log_streams(logGroupName=TRAINING, logStreamNamePrefix="logs/")
    assert len(first["logStreams"]) == 50
    rest = local.logs.describe_log_streams(
        logGroupName=TRAINING, logStreamNamePrefix="logs/", nextToken=first["nextToken"]
    )
    names = [each["logStreamName"] for each in [*first["logStreams"], *rest["logStreams"]]]
    assert sorted(names) == names == sorted(f"logs/algo-{number}-1" for number in range(1, 61))
    assert "nextToken" not in rest
    assert (rest["logStreams"][0]["firstEventTimestamp"], rest["logStreams"][0]["lastEventTimestamp"]) == (1000, 1001)
    with pytest.raises(NotFound):
        local.logs.describe_log_streams(logGroupName=PROCESSING)


def test_events_come_in_pages_and_none_twice(local):
    streams(local, 1, 10)
    query = {"logGroupName": TRAINING, "logStreamName": "logs/algo-1-1"}
    path = JobFolder.of(local.root, Kind.TRAINING, "logs").logs / "algo-1-1"
    answer = local.logs.get_log_events(**query, startFromHead=True, limit=4)
    found, token = [event["message"] for event in answer["events"]], ""
    while answer["nextForwardToken"] != token:
        token = answer["nextForwardToken"]
        answer = local.logs.get_log_events(**query, nextToken=token, limit=4)
        found += [event["message"] for event in answer["events"]]
    assert found == [f"1:{line}" for line in range(10)]
    with open(path, "a") as file:
        file.write('{"timestamp": 2000, "ingestionTime": 9, "mess')
        file.flush()
        assert local.logs.get_log_events(**query, nextToken=token)["events"] == []  # a line that is being written
        file.write('age": "late"}\n')
    assert [event["message"] for event in local.logs.get_log_events(**query, nextToken=token)["events"]] == ["late"]
    last = local.logs.get_log_events(**query, limit=3)
    assert [event["message"] for event in last["events"]] == ["1:8", "1:9", "late"]
    before = local.logs.get_log_events(**query, nextToken=last["nextBackwardToken"], limit=2)
    assert [event["message"] for event in before["events"]] == ["1:6", "1:7"]
    some = local.logs.get_log_events(**query, startFromHead=True, startTime=1003, endTime=1005)
    assert [event["timestamp"] for event in some["events"]] == [1003, 1004]
    with pytest.raises(ApiError, match="InvalidParameterException"):
        local.logs.get_log_events(**query, nextToken="f/999999")
    with pytest.raises(NotFound):
        local.logs.get_log_events(**{**query, "logStreamName": "logs/../../request.json"})


def test_a_reason_is_at_most_1024_characters_and_ends_with_the_code():
    assert failure_reason("", 1) == "AlgorithmError: , exit code: 1"
    long = failure_reason("x" * 5000, 137)
    assert len(long) == 1024
    assert long.endswith("x, exit code: 137")
    assert len(LocalJobRecord.new(0.0).finished("Failed", 1.0, failure="x" * 5000).failure) == 1024


def test_more_hosts_than_a_machine_can_simulate(local):
    with pytest.raises(UserError, match=r"--hosts: 65 are too many for one machine; allowed: up to 64"):
        local.platform.create_training_job(**training(local.store, "job", "", hosts=65))


def test_paths_below_opt_ml_become_paths_of_the_host():
    base = Path("/root/algo-1")
    there = {
        "/opt/ml": "/root/algo-1",
        "/opt/ml/model": "/root/algo-1/model",
        "--data=/opt/ml/input": "--data=/root/algo-1/input",
        '["--data", "/opt/ml/input/data/x"]': '["--data", "/root/algo-1/input/data/x"]',
        "cp a /opt/ml/model": "cp a /root/algo-1/model",
        "/opt/mlx /x/opt/ml s3://b/opt/ml": "/opt/mlx /x/opt/ml s3://b/opt/ml",
    }
    assert {text: local_text(text, base) for text in there} == there


def test_gpus_are_divided_in_equal_parts(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert gpus.visible({}, tmp_path) == ["0", "1", "10"]
    assert gpus.visible({"CUDA_VISIBLE_DEVICES": "GPU-a,3"}, tmp_path) == ["GPU-a", "3"]
    assert gpus.visible({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []
    assert gpus.divided(["0", "1", "2", "3", "4"], 2) == ["0,1", "2,3"]
    assert gpus.divided(["0"], 2) == ["", ""]


def test_nobody_else_of_this_machine_reads_a_request(local):
    """It holds the values of --env."""
    request = training(local.store, "private", "")
    local.platform.accept(Kind.TRAINING, request, failure="CapacityError: none")
    assert (local.root / "jobs/training/private").stat().st_mode & 0o077 == 0
