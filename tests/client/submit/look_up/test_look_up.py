"""Facts from AWS: moto's S3, IAM, STS and ECR behind boto3."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from moto import mock_aws

from algorun.common.errors import UserError
from algorun_client.aws import aws_session
from algorun_client.aws.api import ReadyTarget
from algorun_client.aws.s3_store import S3Store
from algorun_client.common.errors import ApiError, NotFound
from algorun_client.connection import PollTimes, Site
from algorun_client.request.codec import to_json
from algorun_client.request.model import Kind, TaskAddress
from algorun_client.submit.history.claims import claim_uri
from algorun_client.submit.look_up.facts import Listed, Upstream
from algorun_client.submit.look_up.look_up import look_up
from algorun_client.submit.read.source_tasks import Reading
from tests.client.submit.specs import request, spec

REGION, ACCOUNT = "eu-west-1", "123456789012"
MANIFEST = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": []})
REGISTRY = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com"


@pytest.fixture
def session(monkeypatch):
    for name, value in {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_CONFIG_FILE": "/none"}.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        made = aws_session.open_session(region=REGION)
        made.client("s3").create_bucket(Bucket="b-ucket", CreateBucketConfiguration={"LocationConstraint": REGION})
        made.client("iam").create_role(RoleName="Job", Path="/service-role/", AssumeRolePolicyDocument="{}")
        yield made


class Jobs:
    """DescribeTrainingJob and DescribeProcessingJob for jobs whose status is known."""

    def __init__(self, **status):
        self.status = status

    def describe_training_job(self, TrainingJobName):
        return {"TrainingJobName": TrainingJobName, "TrainingJobStatus": self._of(TrainingJobName)}

    def describe_processing_job(self, ProcessingJobName):
        return {
            "ProcessingJobName": ProcessingJobName,
            "ProcessingJobStatus": self._of(ProcessingJobName),
            "ProcessingInputs": [],
        }

    def _of(self, job):
        if job not in self.status:
            raise NotFound("ValidationException", "not found")
        return self.status[job]


def looked_up(session, task, jobs=None):
    target = ReadyTarget(
        "aws", jobs or Jobs(), SimpleNamespace(), S3Store(session.client("s3"), ACCOUNT, ""), SimpleNamespace()
    )
    return looked_up_in(session, target, task)


def looked_up_in(session, target, task):
    connection = Site(target=target, following=lambda: target, session=session, pace=PollTimes(), options="")
    return look_up(task, Reading(), connection, {})


def put(session, *keys):
    for key in keys:
        session.client("s3").put_object(Bucket="b-ucket", Key=key, Body=b"x")


def test_role_bucket_and_account(session):
    facts = looked_up(session, spec("ddp", role="Job"))
    assert facts.role_arn == f"arn:aws:iam::{ACCOUNT}:role/service-role/Job"
    assert facts.bucket == f"sagemaker-{REGION}-{ACCOUNT}"


def test_an_unknown_role_is_71(session):
    with pytest.raises(UserError, match="--role: 'Nobody' does not exist") as error:
        looked_up(session, spec("ddp", role="Nobody"))
    assert error.value.code == 71


def test_the_image_is_pinned_to_its_digest(session):
    ecr = session.client("ecr")
    ecr.create_repository(repositoryName="team/algorun")
    pushed = ecr.put_image(repositoryName="team/algorun", imageTag="0.2.0", imageManifest=MANIFEST)
    facts = looked_up(session, spec("ddp", role="Job", image=f"{REGISTRY}/team/algorun:0.2.0"))
    assert facts.image == f"{REGISTRY}/team/algorun@{pushed['image']['imageId']['imageDigest']}"


@pytest.mark.parametrize("name", ["algorun:nope", "nope:1"])
def test_a_missing_image_is_one_error(session, name):
    session.client("ecr").create_repository(repositoryName="algorun")
    with pytest.raises(UserError, match=f"--image: {REGISTRY}/{name} does not exist") as error:
        looked_up(session, spec("ddp", role="Job", image=f"{REGISTRY}/{name}"))
    assert error.value.code == 64


def test_an_image_of_another_registry_stays(session):
    assert looked_up(session, spec("ddp", role="Job", image="docker.io/me/algorun:1")).image == "docker.io/me/algorun:1"


@pytest.mark.parametrize(
    ("keys", "source", "listed"),
    [
        (["images/1", "images/2", "images-old/3"], "images", Listed(uri="s3://b-ucket/images/", objects=2)),
        (["images/1", "images/2", "images/3", "images/4"], "images/", Listed(uri="s3://b-ucket/images/", objects=3)),
        (["a.tar.gz", "a.tar.gz.old"], "a.tar.gz", Listed(uri="s3://b-ucket/a.tar.gz", objects=1)),
        (["part-1", "part-2"], "part-", Listed(uri="s3://b-ucket/part-", objects=2)),
        (["images/"], "images", Listed(uri="s3://b-ucket/images", objects=0)),
        ([], "images", Listed(uri="s3://b-ucket/images", objects=0)),
    ],
)
def test_a_source_names_no_neighbour(session, keys, source, listed):
    put(session, *keys)
    task = spec("ddp", role="Job", hosts="3", **{"in": [f"train=s3://b-ucket/{source}"]})
    assert looked_up(session, task).sources == {f"s3://b-ucket/{source}": listed}


def test_a_bucket_that_does_not_exist(session):
    with pytest.raises(UserError, match="--in train: s3://no-bucket/x: .*; fix: check bucket, key and --region"):
        looked_up(session, spec("ddp", role="Job", **{"in": ["train=s3://no-bucket/x"]}))


def test_a_bucket_without_rights_may_still_be_the_jobs(session, monkeypatch):
    def denied(*_):
        raise ApiError("AccessDenied", "no", "ListObjectsV2")

    monkeypatch.setattr(S3Store, "list", denied)

    def listed(source):
        task = spec("ddp", role="Job", hosts="2", **{"in": [f"train={source}"]})
        return looked_up(session, task).sources[source]

    put(session, "x.tar")
    assert listed("s3://b-ucket/x/") == Listed(uri="s3://b-ucket/x/", objects=2)
    assert listed("s3://b-ucket/x.tar") == Listed(uri="s3://b-ucket/x.tar", objects=1)
    with pytest.raises(
        UserError, match="--in train: s3://b-ucket/x: .*AccessDenied: no; .*; fix: s3://b-ucket/x/ for"
    ) as error:
        listed("s3://b-ucket/x")
    assert error.value.code == 71


def test_the_source_of_another_account_is_listed(session):
    """Only the bucket of tasks has to be the caller's own."""
    put(session, "images/1", "images/2")
    answers = session.client("s3")
    owners = []
    answers.meta.events.register(
        "before-call.s3", lambda params, **_: owners.append("x-amz-expected-bucket-owner" in params["headers"])
    )
    store = S3Store(answers, ACCOUNT, bucket=session.default_bucket())
    target = ReadyTarget("aws", Jobs(), SimpleNamespace(), store, SimpleNamespace())
    task = spec("ddp", role="Job", hosts="3", **{"in": ["train=s3://b-ucket/images,shard"]})
    facts = looked_up_in(session, target, task)
    assert facts.sources == {"s3://b-ucket/images": Listed(uri="s3://b-ucket/images/", objects=2)}
    assert set(owners) == {False}


def executed(session, store_address, numbers):
    for number in numbers:
        made = request(spec("package/main.py", task="data", kind="processing"), number=number)
        body = json.dumps({**to_json(made), "job": f"data-{number}"})
        session.client("s3").put_object(
            Bucket="b-ucket", Key=claim_uri(store_address, number).split("/", 3)[3], Body=body
        )


def test_the_newest_completed_execution_feeds_a_chain(session):
    executed(session, TaskAddress(bucket="b-ucket", project="vision", task="data"), [1, 2, 3, 4])
    task = spec("ddp", role="Job", bucket="b-ucket", **{"in": ["train=task:data/output/x", "s=task:other/state"]})
    jobs = Jobs(**{"data-1": "Completed", "data-2": "Completed", "data-3": "Failed"})
    assert looked_up(session, task, jobs).upstreams == {
        "data": Upstream(kind=Kind.PROCESSING, number=2, job="data-2", task="data")
    }


def test_a_task_without_a_completed_execution_feeds_nothing(session):
    executed(session, TaskAddress(bucket="b-ucket", project="vision", task="data"), [1])
    task = spec("ddp", role="Job", bucket="b-ucket", **{"in": ["train=task:data/output"]})
    with pytest.raises(
        UserError,
        match="--in train: task 'data' has no completed job; its newest job data-1 is Failed; fix: algorun submit --task data",
    ):
        looked_up(session, task, Jobs(**{"data-1": "Failed"}))
