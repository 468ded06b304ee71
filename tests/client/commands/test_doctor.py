"""`algorun doctor --aws` beside a server that answers as AWS does: what it finds, with which fix, and that it only reads."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import boto3
import pytest
from botocore.client import BaseClient

from algorun import cli
from algorun.common import REQUEST_FORMAT
from algorun_client.commands.main import main
from algorun_client.submit.look_up.look_up import LABEL
from tests.client.submit.test_submit import no_credentials
from tests.sagemaker_server.server_process import ACCOUNT, REGION, running

TRUST = json.dumps(
    {"Statement": {"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}}
)
LINE = ["--role", "Job", "--bucket", "b-ucket", "--hosts", "3", "--instance", "ml.g5.12xlarge", "--per-gpu", "train.py"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(tmp_path_factory.mktemp("server")) as process:
        session = boto3.Session("x", "x", region_name=REGION)
        ours = {"endpoint_url": process.moto_url}
        session.client("s3", **ours).create_bucket(Bucket="b-ucket")
        iam = session.client("iam", **ours)
        iam.create_role(RoleName="Job", Path="/service-role/", AssumeRolePolicyDocument=TRUST)
        iam.create_role(RoleName="Mine", AssumeRolePolicyDocument=TRUST.replace("sagemaker", "ec2"))
        yield process


@pytest.fixture
def account(server, monkeypatch, tmp_path):
    """The server in the environment of the test; faults are gone, and the folder is empty."""
    no_credentials(monkeypatch)
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)
    server.faults()
    folder = tmp_path / "vision"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text("")
    return server


class Ours:
    """A session of boto3 beside the server, whatever the environment says."""

    def __init__(self, server):
        self.server, self.session = server, boto3.Session("x", "x", region_name=REGION)

    def client(self, name, **settings):
        url = self.server.url if name == "ecr" else self.server.moto_url
        return self.session.client(name, endpoint_url=url, **settings)


@pytest.fixture(scope="module")
def image(server):
    return server.image(Ours(server), tag="2", **{LABEL: str(REQUEST_FORMAT)})


def looked(capsys, *words, code=0):
    """The findings by topic."""
    assert main(["doctor", "--aws", "--json", *words], {}) == code
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["code"]) == (not code, code)
    return {row["topic"]: row for row in found["findings"]}


def test_an_account_that_is_ready(account, image, capsys):
    found = looked(capsys, "--image", image, *LINE)
    assert {topic: row["state"] for topic, row in found.items()} == dict.fromkeys(
        ("credentials", "region", "role", "bucket", "image", "quota"), "ok"
    )
    assert found["role"]["value"] == f"arn:aws:iam::{ACCOUNT}:role/service-role/Job"
    assert found["bucket"]["value"] == "b-ucket"
    assert "sha256:" in found["image"]["value"]
    assert found["quota"]["value"] == "ml.g5.12xlarge for training job usage: 20"
    assert main(["doctor", "--aws", "--image", image, *LINE], {}) == 0
    said = capsys.readouterr().out
    assert all(line.startswith("ok    ") for line in said.splitlines())
    assert (
        cli.main(["doctor", "--image", image, "--aws", *LINE]) == 0
    )  # the launcher hands it over, wherever the flag stands


def test_it_only_reads(account, image, capsys, monkeypatch):
    made: list[str] = []
    call = BaseClient._make_api_call

    def note(self, operation, arguments):
        made.append(operation)
        return call(self, operation, arguments)

    monkeypatch.setattr(BaseClient, "_make_api_call", note)
    looked(capsys, "--image", image, "--kms-key", "alias/none", *LINE, code=71)
    assert made
    assert all(each.startswith(("Get", "List", "Describe", "BatchGet", "Head")) for each in made), made


@pytest.mark.parametrize(
    ("words", "topic", "code", "value", "fix"),
    [
        (["--role", "Nobody"], "role", 71, "'Nobody' does not exist", f"algorun role --for trust --account {ACCOUNT} --region {REGION} >"),
        (["--role", "Mine"], "role", 71, "SageMaker may not take Mine", "aws iam create-role --role-name algorun "),
        ([], "role", 71, "none is given, and arn:", "algorun role --for trust"),
        (["--bucket", "no-bucket"], "bucket", 64, "no-bucket does not exist", f"aws s3 mb s3://no-bucket --region {REGION}, or submit with --cr"),
        (["--kms-key", "1234abcd-12ab-34cd-56ef-1234567890ab"], "KMS key", 71, "does not exist in us-east-1", "aws kms list-aliases"),
        (["--image", f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/algorun:none"], "image", 64, "does not exist", "build.sh"),
        (["--instance", "ml.p4d.24xlarge"], "quota", 72, "ml.p4d.24xlarge for training job usage: 0, and 3 are asked for",
         "aws service-quotas request-service-quota-increase --service-code sagemaker --quota-code L-"),
        (["--spot", "--instance", "ml.p5.48xlarge", "--hosts", "1"], "quota", 72, "ml.p5.48xlarge for spot training job usage: 0, and 1 is", "aws"),
    ],
)  # fmt: skip
def test_what_is_missing_has_its_command(words, topic, code, value, fix, account, image, capsys):
    given = ["--image", image, "--role", "Job", "--bucket", "b-ucket", "--hosts", "3", "--instance", "ml.g5.12xlarge"]
    given = given[:2] + given[4:] if not words else given
    for option, argument in zip(words[::2], words[1::2], strict=False):
        if option in given:
            del given[given.index(option) : given.index(option) + 2]
        assert argument
    found = looked(capsys, *given, *words, "--per-gpu", "train.py", code=code)[topic]
    assert found["state"] == "fail"
    assert value in found["value"]
    assert fix in found["fix"]


@pytest.mark.parametrize(
    ("types", "code", "states"),
    [
        ("ml.p4d.24xlarge,ml.g5.12xlargex2", 0, ["warn", "ok"]),
        ("ml.g5.12xlarge,ml.p4d.24xlarge", 0, ["ok", "warn"]),
        ("ml.p4d.24xlarge,ml.p5.48xlarge", 72, ["fail", "fail"]),
    ],
)
def test_hosts_in_order_of_preference_need_one_quota_of_theirs(types, code, states, account, image, capsys):
    line = ["--image", image, "--role", "Job", "--bucket", "b-ucket", "--instance", types, "--per-gpu", "train.py"]
    assert main(["doctor", "--aws", "--json", *line], {}) == code
    rows = [row for row in json.loads(capsys.readouterr().out)["findings"] if row["topic"] == "quota"]
    assert [row["state"] for row in rows] == states
    assert ("leave it: a submit takes the next hosts" in str(rows)) == ("warn" in states)


def test_the_command_for_a_quota_is_one_that_aws_takes(account, capsys):
    found = looked(
        capsys, *LINE[:4], "--instance", "ml.p4d.24xlarge", "--hosts", "2", "--image", "x/y:1", "train.py", code=72
    )["quota"]
    words = shlex.split(found["fix"].partition(";")[0])
    assert words[:3] == ["aws", "service-quotas", "request-service-quota-increase"]
    asked = dict(zip(words[3::2], words[4::2], strict=True))
    assert asked["--desired-value"] == "2"
    quotas = boto3.client("service-quotas", region_name=REGION).get_paginator("list_service_quotas")
    named = [each for page in quotas.paginate(ServiceCode=asked["--service-code"]) for each in page["Quotas"]]
    assert [each["QuotaName"] for each in named if each["QuotaCode"] == asked["--quota-code"]] == [
        "ml.p4d.24xlarge for training job usage"
    ]


def test_an_image_without_our_label_and_one_that_is_too_old(account, image, capsys):
    bare = account.image(Ours(account), tag="bare")
    found = looked(capsys, "--image", bare, *LINE)["image"]
    assert found["state"] == "warn"
    assert f"no image of algorun's, its label {LABEL} is missing" in found["value"]
    old = account.image(Ours(account), tag="old", **{LABEL: "1"})
    assert (
        "is too old: it reads requests up to format 1, and this one has 2"
        in looked(capsys, "--image", old, *LINE, code=64)["image"]["value"]
    )
    assert looked(capsys, "--image", "docker.io/me/x:1", *LINE)["image"]["state"] == "warn"


def test_rights_that_are_missing_and_no_instance_are_said(account, image, capsys):
    account.faults(denied="ListServiceQuotas")
    found = looked(capsys, "--image", image, *LINE)["quota"]
    assert found["state"] == "warn"
    assert "AccessDeniedException" in found["value"]
    assert found["fix"] == "ask for the right servicequotas:ListServiceQuotas"
    found = looked(capsys, "--image", image, *LINE[:4], "train.py")["instances"]
    assert (found["state"], found["fix"]) == ("warn", "--instance TYPE")


def test_without_credentials_or_region_nothing_more_is_asked(account, capsys, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert list(looked(capsys, *LINE, code=71)) == ["region"]
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    found = looked(capsys, *LINE, code=71)
    assert list(found) == ["credentials"]
    assert "aws configure" in found["credentials"]["fix"]


def test_all_tasks_of_a_job_file_are_looked_at_together(account, image, capsys, tmp_path):
    (tmp_path / "vision" / "algorun.toml").write_text(
        f'image = "{image}"\nrole = "Job"\nbucket = "b-ucket"\n'
        '[task.data]\nkind = "processing"\nrun = ["train.py"]\ninstance = "ml.c5.xlarge"\n'
        '[task.train]\nrun = ["train.py"]\nper_gpu = true\ninstance = "ml.g5.12xlarge"\nhosts = 30\nspot = true\nin.train = "task:data/output"\n'
    )
    assert main(["doctor", "--aws"], {}) == 72
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if not line.startswith(" ")] == [
        "credentials", "region", "role", "bucket", "image", "quota", "quota",
    ]  # fmt: skip
    assert "ml.c5.xlarge for processing job usage: 20" in lines[5]
    assert "ml.g5.12xlarge for spot training job usage: 20, and 30 are asked for" in lines[6]
    assert looked(capsys, "--task", "data")["quota"]["value"] == "ml.c5.xlarge for processing job usage: 20"


def test_every_region_is_looked_at_and_one_of_them_needs_the_quota(account, image, capsys, monkeypatch):
    from algorun_client.aws import account as looks

    where = {"CreateBucketConfiguration": {"LocationConstraint": "us-west-2"}}
    there = f"sagemaker-us-west-2-{ACCOUNT}"
    boto3.client("s3", region_name="us-west-2").create_bucket(Bucket=there, **where)
    read = looks.quotas

    def quotas(session, names):
        found = read(session, names)
        return found if session.region == REGION else {name: replace(each, value=0) for name, each in found.items()}

    monkeypatch.setattr(looks, "quotas", quotas)
    line = ["--region", f"{REGION},us-west-2", "--image", image, *LINE]

    def rows(code):
        assert main(["doctor", "--aws", "--json", *line], {}) == code
        return [(row["topic"], row["state"], row) for row in json.loads(capsys.readouterr().out)["findings"]]

    found = rows(64)
    assert [row["value"] for topic, _, row in found if topic == "region"] == [REGION, "us-west-2"]
    assert [row["value"] for topic, _, row in found if topic == "bucket"] == ["b-ucket", there]
    (missing,) = [row for topic, state, row in found if (topic, state) == ("image", "fail")]
    assert "us-west-2.amazonaws.com/algorun:2 does not exist" in missing["value"]
    assert missing["fix"] == "`./build.sh push --region us-west-2` puts algorun's image there"
    account.image(Ours(account), tag="2", region="us-west-2", **{LABEL: str(REQUEST_FORMAT)})
    first, second = [(state, row) for topic, state, row in rows(0) if topic == "quota"]
    assert (first[0], second[0]) == ("ok", "warn")
    assert second[1]["fix"].endswith("; or leave it: a submit takes the next region")
    boto3.client("s3", region_name="us-west-2").delete_bucket(Bucket=there)  # for the tests after this one


# -- the bucket is made on flags ---------------------------------------------------------------------------------------


def test_the_bucket_is_made_on_wish_and_only_then(account, image, capsys):
    job = ["--image", image, "--role", "Job", "--instance", "ml.m5.large", "--detach", "true"]
    assert main(["submit", *job], {}) == 64
    default = f"sagemaker-{REGION}-{ACCOUNT}"
    said = capsys.readouterr().err
    assert (
        f"--bucket: {default}: The specified bucket does not exist; fix: create it with --create-bucket (or `aws s3 mb"
        in said
    )
    assert main(["submit", "--dry-run", "--create-bucket", *job], {}) == 0
    assert f"not looked up: bucket {default}: does not exist yet: submit would make it" in capsys.readouterr().err
    buckets = boto3.client("s3", endpoint_url=account.moto_url)
    assert [each["Name"] for each in buckets.list_buckets()["Buckets"]] == ["b-ucket"]
    assert main(["submit", "--create-bucket", *job], {}) == 0
    said = capsys.readouterr().err
    assert f"algorun: bucket {default} is made in {REGION}\n" in said
    assert (
        f"console: https://{REGION}.console.aws.amazon.com/sagemaker/home?region={REGION}#/jobs/vision-true-0001-"
        in said
    )
    assert main(["submit", "--create-bucket", *job], {}) == 0  # it is there
    assert "is made" not in capsys.readouterr().err
