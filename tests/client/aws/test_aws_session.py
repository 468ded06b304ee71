"""boto3's answers and errors in the words of the client, and the facts of an account. Against moto."""

from __future__ import annotations

import json
import os
import socket
import time

import boto3
import pytest
from boto3.exceptions import S3UploadFailedError
from botocore.awsrequest import AWSPreparedRequest
from botocore.exceptions import ClientError, ConnectTimeoutError
from moto import mock_aws

from algorun.common.errors import UserError
from algorun_client.aws import aws_session
from algorun_client.aws.aws_session import take_events
from algorun_client.aws.boto_errors import as_api_errors
from algorun_client.aws.job_state import find
from algorun_client.common.errors import ApiError, Exists, NotFound
from algorun_client.common.refusals import Refusal, explained, refusal
from algorun_client.follow.log_reader import LogReader
from algorun_client.request.model import Kind

REGION = "eu-west-1"
ACCOUNT = "123456789012"
REGISTRY = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com"

MANIFEST = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": []}


@pytest.fixture
def session(monkeypatch):
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    with mock_aws():
        yield aws_session.open_session(region=REGION)


def test_an_account_has_a_default_bucket(session):
    assert session.default_bucket() == f"sagemaker-{REGION}-{ACCOUNT}"


def test_a_roles_path_is_looked_up(session):
    boto3.client("iam").create_role(RoleName="Job", Path="/service-role/", AssumeRolePolicyDocument=json.dumps({}))
    assert session.role_arn("Job") == f"arn:aws:iam::{ACCOUNT}:role/service-role/Job"
    assert session.role_arn("arn:aws:iam::1:role/x") == "arn:aws:iam::1:role/x"


@pytest.mark.parametrize("name", ["Absent", ""])
def test_an_unknown_role_and_none_at_all_end_with_71(session, name):
    with pytest.raises(UserError, match="--role: .*algorun role") as error:
        session.role_arn(name)
    assert error.value.code == 71


def test_the_role_of_a_caller_who_has_assumed_one(session):
    arn = boto3.client("iam").create_role(RoleName="Notebook", Path="/p/", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    taken = boto3.client("sts", region_name=REGION).assume_role(RoleArn=arn, RoleSessionName="me")["Credentials"]
    as_role = boto3.Session(taken["AccessKeyId"], taken["SecretAccessKey"], taken["SessionToken"], region_name=REGION)
    assert aws_session.AwsSession(as_role).role_arn("") == arn


def test_the_role_of_a_person_is_no_jobs_role(session):
    """On a laptop the caller has assumed a role of IAM Identity Center."""
    name = "AWSReservedSSO_Admin_0123456789abcdef"
    session._account, session._arn = ACCOUNT, f"arn:aws:sts::{ACCOUNT}:assumed-role/{name}/ann"
    for asked, start in (("", "none is given, and yours, "), (name, "")):
        with pytest.raises(
            UserError, match=f"--role: {start}{name}, is a role for people.*fix: --role NAME.*algorun role"
        ) as error:
            session.role_arn(asked)
        assert error.value.code == 71


@pytest.mark.parametrize(
    ("principal", "may"),
    [
        ({"Service": "sagemaker.amazonaws.com"}, True),
        ({"Service": ["ec2.amazonaws.com", "sagemaker.amazonaws.com"]}, True),
        ("*", True),
        ({"Service": "ec2.amazonaws.com"}, False),
        ({"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, False),
    ],
)
def test_a_role_that_sagemaker_may_not_take_is_refused(session, principal, may):
    trust = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}],
    }
    arn = boto3.client("iam").create_role(RoleName="R", AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"]
    session._account, session._arn = ACCOUNT, f"arn:aws:sts::{ACCOUNT}:assumed-role/R/ann"
    if may:
        assert session.role_arn("R") == session.role_arn("") == arn
        return
    for asked, start in (("", "none is given, and SageMaker may not take yours, R"), ("R", "SageMaker may not take R")):
        with pytest.raises(
            UserError, match=f"--role: {start}: its trust policy does not name sagemaker.amazonaws.com; fix: --role"
        ) as error:
            session.role_arn(asked)
        assert error.value.code == 71


def test_an_image_has_a_digest_or_does_not_exist(session):
    ecr = boto3.client("ecr", region_name=REGION)
    ecr.create_repository(repositoryName="algorun")
    ecr.put_image(repositoryName="algorun", imageManifest=json.dumps(MANIFEST), imageTag="0.2")
    digest = session.image_digest(f"{REGISTRY}/algorun:0.2")
    assert digest is not None
    assert session.image_digest(f"{REGISTRY}/algorun@{digest}") == digest
    assert session.image_digest("docker.io/library/busybox") is None
    for image in (f"{REGISTRY}/algorun:0.3", f"{REGISTRY}/other:1"):
        with pytest.raises(UserError, match=f"--image: {image} does not exist") as error:
            session.image_digest(image)
        assert error.value.code == 64


def test_what_is_absent_and_what_exists(session):
    target = session.target()
    assert find(target.sagemaker, "no-such-job-0001") is None
    with pytest.raises(NotFound):
        target.logs.describe_log_streams(logGroupName="/aws/sagemaker/TrainingJobs")
    LogReader(target.logs, Kind.TRAINING, "job").discover()
    boto3.client("s3", region_name=REGION).create_bucket(
        Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": REGION}
    )
    target.store.put("s3://bucket/a", b"1", if_absent=True)
    with pytest.raises(Exists):
        target.store.put("s3://bucket/a", b"2", if_absent=True)
    with pytest.raises(ApiError) as error:
        target.sagemaker.create_training_job(TrainingJobName="x")
    assert refusal(error.value) is Refusal.INVALID


@pytest.mark.parametrize(("profile", "region", "where"), [("", "", "--region"), ("absent", REGION, "--profile")])
def test_without_a_region_or_profile_the_option_is_named(session, monkeypatch, profile, region, where):
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=f"^{where}: ") as error:
        aws_session.open_session(profile, region)
    assert error.value.code == 71


def test_without_credentials_there_is_no_session(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(UserError, match="no credentials") as error:
        aws_session.open_session(region=REGION)
    assert error.value.code == 71


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("ExpiredTokenException", 71), ("InvalidClientTokenId", 71), ("AccessDeniedException", 71),
        ("ResourceLimitExceeded", 72), ("CapacityError", 73), ("ThrottlingException", 75),
        ("EndpointConnectionError", 75), ("ValidationException", 64),
    ],
)  # fmt: skip
def test_a_refused_call_ends_a_command_with_a_code_and_a_fix(code, exit_code):
    error = explained(ApiError(code, "text", "CreateTrainingJob"))
    assert error.code == exit_code
    assert str(error).startswith(f"CreateTrainingJob: {code}: text; fix: ")


def test_only_s3_needs_the_account(session, monkeypatch):
    """Every command asked STS first, also those that only ask SageMaker."""
    made = []
    client = aws_session.AwsSession.client
    monkeypatch.setattr(aws_session.AwsSession, "client", lambda *args: (made.append(args[1]), client(*args))[1])
    target = session.target()
    assert find(target.sagemaker, "no-such-job-0001") is None
    with pytest.raises(NotFound):
        target.logs.describe_log_streams(logGroupName="/aws/sagemaker/TrainingJobs")
    assert made == ["sagemaker", "logs"]
    assert target.store is target.store
    assert made == ["sagemaker", "logs", "s3", "sts"]


def test_an_image_whose_labels_cannot_be_read_is_lost_contact(session, monkeypatch):
    """The text used to be "check the path and its rights", the code 64."""
    ecr = boto3.client("ecr", region_name=REGION)
    ecr.create_repository(repositoryName="algorun")
    manifest = {**MANIFEST, "config": {"digest": f"sha256:{'0' * 64}"}}
    ecr.put_image(repositoryName="algorun", imageManifest=json.dumps(manifest), imageTag="0.2")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/layer?signature"
        fact = aws_session.AwsSession._fact

        def layer(self, function, operation, **arguments):
            asks = operation == "GetDownloadUrlForLayer" and "url" not in arguments
            return {"downloadUrl": url} if asks else fact(self, function, operation, **arguments)

        monkeypatch.setattr(aws_session.AwsSession, "_fact", layer)
        with pytest.raises(UserError, match=r"GetDownloadUrlForLayer: .*/layer: .*refused.*check the network") as error:
            session.image_labels(f"{REGISTRY}/algorun:0.2")
    assert error.value.code == 75


@pytest.mark.parametrize(
    ("code", "exit_code"), [("ThrottlingException", 75), ("EndpointConnectionError", 75), ("ExpiredToken", 71)]
)
def test_a_role_that_could_not_be_asked_for_is_no_wrong_role(session, monkeypatch, code, exit_code):
    def refused(*_: object, **__: object) -> None:
        raise ApiError(code, "text", "GetRole")

    monkeypatch.setattr(aws_session, "call", refused)
    with pytest.raises(UserError, match=f"^GetRole: {code}: text; fix: ") as error:
        session.role_arn("Job")
    assert error.value.code == exit_code


@pytest.mark.parametrize(
    "raised", [ConnectionResetError("reset"), TimeoutError("slow"), socket.gaierror(-2, "unknown")]
)
def test_a_broken_connection_is_no_fault_of_this_machine(raised):
    with pytest.raises(ApiError) as error, as_api_errors("GetObject"):
        raise raised
    assert explained(error.value).code == 75


def test_a_transfer_tells_why_it_was_refused():
    hidden = S3UploadFailedError("Failed to upload")
    hidden.__context__ = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "PutObject")
    with pytest.raises(ApiError) as error, as_api_errors("PutObject"):
        raise hidden
    assert (error.value.code, error.value.message) == ("AccessDenied", "no")
    assert refusal(ApiError("RetriesExceededError", "", "GetObject")) is Refusal.UNREACHABLE


def test_errors_of_the_disk_pass():
    with pytest.raises(PermissionError), as_api_errors("GetObject"):
        raise PermissionError("no")


def test_log_events_come_as_botocore_s_own_parser_gives_them(session):
    logs = boto3.client("logs", region_name=REGION)
    group, now = "/aws/sagemaker/TrainingJobs", int(time.time() * 1000)
    logs.create_log_group(logGroupName=group)
    logs.create_log_stream(logGroupName=group, logStreamName="job/algo-1-1")
    texts = ["plain", 'é \n\u2028 "x"', " "]
    events = [{"timestamp": now + number, "message": text} for number, text in enumerate(texts)]
    logs.put_log_events(logGroupName=group, logStreamName="job/algo-1-1", logEvents=events)
    query = {"logGroupName": group, "logStreamName": "job/algo-1-1", "startFromHead": True}
    plain, read = logs.get_log_events(**query), session.target().logs.get_log_events(**query)
    for answer in (plain, read):
        del answer["ResponseMetadata"]
    assert read == plain
    assert [each["message"] for each in read["events"]] == texts
    with pytest.raises(NotFound):
        session.target().logs.get_log_events(**{**query, "logStreamName": "none"})


@pytest.mark.parametrize(("status", "body"), [(200, b"<html>"), (200, b"[]"), (400, b'{"events": []}'), (200, b"\xff")])
def test_an_answer_without_events_is_left_to_botocore(status, body):
    answer, added = {"status_code": status, "body": body}, {}
    take_events(answer, added)
    assert (answer["body"], added) == (body, {})


def test_a_call_that_creates_a_job_is_not_tried_again_after_a_laptop_has_slept(session, monkeypatch):
    """Other clients count this one as dead by then, and may have created their own job."""
    monkeypatch.setattr(session, "_answered", True)  # by the calls before
    api, wall, tries = session.target("b").sagemaker, [1000.0], []

    def unavailable(request: AWSPreparedRequest, **_: object) -> None:
        tries.append(request)
        wall[0] += 3600
        raise ConnectTimeoutError(endpoint_url=request.url)

    api._client.meta.events.register("before-send.sagemaker", unavailable)
    monkeypatch.setattr(time, "time", lambda: wall[0])
    monkeypatch.setattr("botocore.retries.standard.time.sleep", lambda _: None)
    request = {
        "TrainingJobName": "x",
        "RoleArn": "arn:aws:iam::123456789012:role/x",
        "OutputDataConfig": {"S3OutputPath": "s3://b"},
    }
    rest = {
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "StoppingCondition": {},
        "ResourceConfig": {"VolumeSizeInGB": 1},
    }
    with pytest.raises(ApiError, match="CreateTrainingJob: RequestTimeout: no answer for 60 minutes") as error:
        api.create_training_job(**request, **rest)
    assert refusal(error.value) is Refusal.UNREACHABLE
    assert len(tries) == 1
    wall[0] += 3600
    with pytest.raises(ApiError, match="RequestTimeout"):
        api.create_training_job(**request, **rest)
    assert len(tries) == 2, "a later call has its own time"
