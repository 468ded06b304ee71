"""boto3 itself against the test server: jobs run, requests are refused, and trouble is made."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

boto3 = pytest.importorskip("boto3")
pytest.importorskip("moto.server", reason="moto[server] is not installed")

from botocore.config import Config  # noqa: E402
from botocore.exceptions import ClientError  # noqa: E402

from algorun_client.aws import aws_session  # noqa: E402
from algorun_client.aws.job_state import read_training  # noqa: E402
from algorun_client.aws.s3_store import S3Store  # noqa: E402
from tests.client.local.local_jobs import training  # noqa: E402
from tests.sagemaker_server.server_process import running  # noqa: E402

GROUP = "/aws/sagemaker/TrainingJobs"
AWS = {
    "RoleArn": "arn:aws:iam::123456789012:role/SageMakerRole",
    "AlgorithmSpecification": {"TrainingInputMode": "File", "TrainingImage": "algorun:test"},
    "ResourceConfig": {"InstanceType": "ml.m5.large", "VolumeSizeInGB": 1},
}
SHELL = {"AlgorithmSpecification": {**AWS["AlgorithmSpecification"], "ContainerEntrypoint": ["bash", "-c"]}}
LINES = 'for n in $(seq 150); do echo "line $n"; done'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(tmp_path_factory.mktemp("server"), "--stop-grace-s", "20", "--sync-s", "0.1") as process:
        yield process


class Boto:
    """boto3's clients of one test."""

    def __init__(self, session):
        once = Config(retries={"total_max_attempts": 1})
        self.sagemaker, self.logs = session.client("sagemaker", config=once), session.client("logs", config=once)
        self.patient = session.client(
            "sagemaker", config=Config(retries={"mode": "adaptive", "total_max_attempts": 10})
        )
        self.store = S3Store(session.client("s3"))

    def request(self, job, program="", marker="", **more):
        resources = {"ResourceConfig": {**AWS["ResourceConfig"], **more.pop("ResourceConfig", {})}}
        return training(self.store, job, program, marker=marker, **{**AWS, **resources, **more})

    def shell(self, job, script, marker, hosts=1):
        """A job whose host is a shell: quicker than a launcher."""
        algorithm = {**SHELL["AlgorithmSpecification"], "ContainerArguments": [script]}
        return self.request(job, "", marker, hosts=hosts, AlgorithmSpecification=algorithm)

    def ended(self, job):
        deadline = time.monotonic() + 60
        while True:
            answer = self.sagemaker.describe_training_job(TrainingJobName=job)
            if answer["TrainingJobStatus"] in ("Completed", "Failed", "Stopped"):
                return answer
            assert time.monotonic() < deadline, answer
            time.sleep(0.05)

    def streams(self, job):
        pages = self.logs.get_paginator("describe_log_streams").paginate(
            logGroupName=GROUP, logStreamNamePrefix=f"{job}/"
        )
        return [each["logStreamName"] for page in pages for each in page["logStreams"]]

    def messages(self, stream, **query):
        answer = self.logs.get_log_events(logGroupName=GROUP, logStreamName=stream, startFromHead=True, **query)
        return [event["message"] for event in answer["events"]]


@pytest.fixture
def boto(server, monkeypatch):
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)
    session = boto3.session.Session(region_name="us-east-1")
    session.client("s3").create_bucket(Bucket="local")
    yield Boto(session)
    server.faults()


def refused(call, **arguments):
    with pytest.raises(ClientError) as error:
        call(**arguments)
    found = error.value.response["Error"]
    return found["Code"], found["Message"]


FAILS = (
    "import os, sys; print('on ' + os.environ['SM_CURRENT_HOST'], flush=True); sys.exit(3 * int(os.environ['RANK']))"
)


def test_a_job_of_two_hosts_by_boto3(boto, nothing_left):
    request = boto.request("boto-fails", FAILS, nothing_left, Tags=[{"Key": "project", "Value": "x"}])
    arn = boto.sagemaker.create_training_job(**request)["TrainingJobArn"]
    answer = boto.ended("boto-fails")
    assert answer["TrainingJobStatus"] == "Failed"
    assert answer["FailureReason"].startswith("AlgorithmError: exit: rank 1 on algo-2, exit 3")
    assert isinstance(answer["CreationTime"], datetime)
    assert answer["HyperParameters"] == request["HyperParameters"]
    streams = boto.streams("boto-fails")
    assert [name.split("/")[1][:6] for name in streams] == ["algo-1", "algo-2"]
    for number, name in enumerate(streams, 1):
        assert any(line.endswith(f"on algo-{number}") for line in boto.messages(name))
    assert boto.store.hash_of("s3://local/out/boto-fails/output/output.tar.gz") is not None
    assert boto.sagemaker.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "project", "Value": "x"}]
    code, message = refused(boto.sagemaker.create_training_job, **request)
    assert (code, arn in message) == ("ResourceInUse", True)
    code, message = refused(boto.sagemaker.stop_training_job, TrainingJobName="boto-fails")
    assert (code, message.endswith("in status Failed.")) == ("ValidationException", True)
    listed = boto.sagemaker.list_training_jobs(NameContains="boto", StatusEquals="Failed")["TrainingJobSummaries"]
    assert [each["TrainingJobName"] for each in listed] == ["boto-fails"]


def test_what_aws_refuses(boto):
    create = boto.sagemaker.create_training_job
    request = boto.request("refused")
    assert refused(create, **{**request, "RoleArn": "x" * 20})[0] == "ValidationException"
    assert (
        refused(create, **{**request, "HyperParameters": {str(n): "" for n in range(101)}})[0] == "ValidationException"
    )
    missing = {"S3DataType": "S3Prefix", "S3Uri": "s3://local/nothing/"}
    channels = [{"ChannelName": "train", "DataSource": {"S3DataSource": missing}}]
    assert "No S3 objects found" in refused(create, **{**request, "InputDataConfig": channels})[1]
    assert refused(boto.sagemaker.describe_training_job, TrainingJobName="refused")[0] == "ValidationException"
    assert (
        refused(boto.logs.get_log_events, logGroupName=GROUP, logStreamName="no/x-1")[0] == "ResourceNotFoundException"
    )


@pytest.mark.slow
def test_quota_capacity_and_a_lost_answer(boto, server, nothing_left):
    server.faults(quota=True)
    assert refused(boto.sagemaker.create_training_job, **boto.request("quota"))[0] == "ResourceLimitExceeded"
    server.faults(quota=False, capacity=True)
    boto.sagemaker.create_training_job(**boto.request("capacity"))
    assert boto.ended("capacity")["FailureReason"].startswith("CapacityError: ")
    server.faults(capacity=False, lose_answers=1)
    with pytest.raises(ClientError) as error:  # boto3 tries again, and the job is there
        boto.patient.create_training_job(**boto.shell("lost-answer", "true", nothing_left))
    assert error.value.response["Error"]["Code"] == "ResourceInUse"
    assert boto.ended("lost-answer")["TrainingJobStatus"] == "Completed"


def test_throttling_ends_and_an_expired_token_does_not(boto, server):
    server.faults(throttle_s=60.0)
    assert refused(boto.sagemaker.list_training_jobs)[0] == "ThrottlingException"
    server.faults(throttle_s=0.0)  # how a command waits for its end: test_round_trip.py
    assert boto.sagemaker.list_training_jobs(MaxResults=1)["TrainingJobSummaries"] is not None
    server.faults(expired=True)
    assert refused(boto.patient.list_training_jobs)[0] == "ExpiredTokenException"
    with pytest.raises(OSError, match="400"):
        server.faults(no_such_fault=1)


@pytest.mark.slow
def test_late_events_over_sixty_streams(boto, server, nothing_left):
    server.faults(streams=30, late_s=600.0)
    boto.sagemaker.create_training_job(**boto.shell("numbered", LINES, nothing_left, hosts=2))
    assert boto.ended("numbered")["TrainingJobStatus"] == "Completed"
    streams = boto.streams("numbered")
    assert len(streams) == 60  # in two pages
    early = [boto.messages(name) for name in streams]
    assert 0 < sum(map(len, early)) < 300
    server.faults(late_s=0.0)
    everything = [boto.messages(name) for name in streams]
    assert all(set(some) <= set(lines) for some, lines in zip(early, everything, strict=True))
    assert sorted(line for lines in everything for line in lines) == sorted(
        f"line {n}" for n in range(1, 151) for _ in "12"
    )


@pytest.mark.slow
def test_a_spot_job_is_interrupted(boto, server, nothing_left):
    script = "if [ -e $SAGEMAKER_BASE_DIR/checkpoints/x ]; then exit 0; fi; touch $SAGEMAKER_BASE_DIR/checkpoints/x; sleep 60"
    request = boto.shell("spot", script, nothing_left) | {
        "EnableManagedSpotTraining": True,
        "StoppingCondition": {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 60},
        "CheckpointConfig": {"S3Uri": "s3://local/spot-state"},
    }
    boto.sagemaker.create_training_job(**request)
    deadline = time.monotonic() + 30
    while boto.store.hash_of("s3://local/spot-state/x") is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    server.faults(interrupt="spot")
    answer = boto.ended("spot")
    state = read_training(answer)
    assert (state.is_spot, state.interruptions, state.retries) == (True, 1, 0)
    statuses = [each["Status"] for each in answer["SecondaryStatusTransitions"]]
    assert statuses == [
        *["Starting", "Downloading", "Training", "Interrupted"],
        *statuses[:3],
        "Uploading",
        "Completed",
    ]


def test_the_labels_of_an_image_in_ecr(boto, server, monkeypatch):
    session = boto3.session.Session(region_name="us-east-1")
    image = server.image(session, **{"org.algorun.request-format": "1"})
    assert image == "123456789012.dkr.ecr.us-east-1.amazonaws.com/algorun:1"
    assert aws_session.AwsSession(session).image_labels(image) == {"org.algorun.request-format": "1"}
    absent = {"repositoryName": "none", "layerDigest": f"sha256:{'0' * 64}"}
    assert refused(session.client("ecr").get_download_url_for_layer, **absent)[0] == "LayersNotFoundException"
