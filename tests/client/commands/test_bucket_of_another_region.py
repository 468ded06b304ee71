"""A bucket of another region than the one of the command: S3 would answer from there, and SageMaker would know none of its jobs."""

from __future__ import annotations

import boto3
import pytest
from moto import mock_aws

from algorun_client.commands.main import main

HERE, THERE = "us-west-2", "us-east-1"
REQUEST = '{"kind": "training", "job": "images-train-0001-abcdef", "create": {}}'


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    with mock_aws():
        s3 = boto3.client("s3", region_name=THERE)
        s3.create_bucket(Bucket="east")
        s3.put_object(Bucket="east", Key="images/train/jobs/0001/request.json", Body=REQUEST.encode())
        s3.put_object(Bucket="east", Key="images/train/state/a", Body=b"x")
        yield "east"


@pytest.mark.parametrize(
    "words",
    [
        ("status",), ("logs",), ("stop",), ("fetch",), ("state", "ls"), ("state", "clean"),
        ("submit", "--image", "docker.io/me/x:1", "--role", "arn:aws:iam::123456789012:role/J", "--instance", "ml.m5.large", "--task"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("named", ["option", "variable"])
def test_it_is_one_error_that_names_both_regions(bucket, capsys, words, named):
    own = ("--bucket", bucket) if named == "option" else ()
    environ = {"ALGORUN_BUCKET": bucket} if named == "variable" else {}
    place = ("--region", HERE, "--project", "images", *own)
    line = [words[0], *place, *words[1:], "train", *(("train.py",) if words[0] == "submit" else ())]
    assert main(line if words[0] != "state" else [*words, *place, "train"], environ) == 64
    said = capsys.readouterr().err
    assert (
        "bucket east: lies in us-east-1, and --region is us-west-2: SageMaker wants job and bucket in one region"
        in said
    )
    assert "the default there: sagemaker-us-west-2-123456789012), or --region us-east-1" in said
    kept = boto3.client("s3", region_name=THERE).list_objects_v2(Bucket=bucket)["KeyCount"]
    assert kept == 2  # nothing is removed, and nothing uploaded


def test_a_job_by_its_name_needs_no_bucket(bucket, capsys):
    job = "images-train-0002-abcdef"
    boto3.client("sagemaker", region_name=HERE).create_training_job(
        TrainingJobName=job, RoleArn="arn:aws:iam::123456789012:role/J", OutputDataConfig={"S3OutputPath": "s3://west/x"},
        AlgorithmSpecification={"TrainingImage": "x", "TrainingInputMode": "File"}, StoppingCondition={"MaxRuntimeInSeconds": 60},
        ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
    )  # fmt: skip
    assert main(["status", "--region", HERE, "--bucket", bucket, job], {}) == 0
    assert main(["status", "--region", HERE, "--bucket", bucket, "images-train-0001-abcdef"], {}) == 64
    assert "lies in us-east-1" in capsys.readouterr().err  # no job has this name, so it could be a task's


def test_the_bucket_of_the_region_itself_is_looked_into(bucket, capsys):
    assert (
        main(["state", "ls", "--region", THERE, "--bucket", bucket, "--project", "images", "--json", "train"], {}) == 0
    )
    assert '"files": 1' in capsys.readouterr().out


def test_a_job_of_another_program_is_found_by_its_name(bucket, capsys):
    """It has nothing to do with the bucket that the variable names."""
    boto3.client("sagemaker", region_name=HERE).create_training_job(
        TrainingJobName="pytorch-training-1",
        AlgorithmSpecification={"TrainingImage": "x", "TrainingInputMode": "File"},
        RoleArn="arn:aws:iam::123456789012:role/J",
        OutputDataConfig={"S3OutputPath": "s3://other/x"},
        ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
        StoppingCondition={"MaxRuntimeInSeconds": 60},
    )
    line = ["status", "--region", HERE, "--project", "images", "pytorch-training-1"]
    assert main(line, {"ALGORUN_BUCKET": bucket}) == 0
    assert "pytorch-training-1: " in capsys.readouterr().out
