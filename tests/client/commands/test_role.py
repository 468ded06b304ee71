"""The policies that `algorun role` prints are narrow, and cover the calls that the client makes."""

from __future__ import annotations

import fnmatch
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from botocore.loaders import create_loader
from moto import mock_aws

from algorun_client.commands.main import main
from algorun_client.commands.role_policies import ANY_RESOURCE, partition_of

ACCOUNT, REGION, BUCKET = "123456789012", "eu-west-1", "my-bucket"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/0123-abcd"
IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/algorun"
PLACE = ("--bucket", BUCKET, "--project", "images", "--region", REGION, "--account", ACCOUNT)
EVERYTHING = ("--role", "Job", "--kms-key", KEY, "--vpc")
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
JOBS = [f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:{kind}-job/*" for kind in ("training", "processing")]


def policy(capsys, *words: str, environ: dict[str, str] | None = None) -> list[dict[str, Any]]:
    assert main(["role", *words], environ or {}) == 0
    return json.loads(capsys.readouterr().out)["Statement"]


def listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


# -- IAM's decision, as far as these policies need it -----------------------------------------------------------------


def matches(pattern: str, value: str) -> bool:
    """IAM's `*` and `?`; a `[` is no more than itself."""
    return fnmatch.fnmatchcase(value, pattern.replace("[", "[[]"))


def holds(operator: str, wanted: Iterable[str], found: str | None) -> bool:
    compare = {"StringEquals": str.__eq__, "Bool": str.__eq__, "StringLike": matches, "ArnLike": matches}[operator]
    return found is not None and any(compare(each, found) for each in wanted)


def allows(statements: list[dict[str, Any]], action: str, resource: str, context: dict[str, str]) -> bool:
    return any(
        action in listed(each["Action"])
        and any(matches(pattern, resource) for pattern in listed(each.get("Resource", "*")))
        and all(
            holds(operator, listed(wanted), context.get(key))
            for operator, keys in each.get("Condition", {}).items()
            for key, wanted in keys.items()
        )
        for each in statements
    )


# -- bounded ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whom", ["job", "client"])
def test_every_statement_names_what_it_allows(capsys, whom):
    for each in policy(capsys, "--for", whom, *PLACE, *EVERYTHING):
        assert all(re.fullmatch(r"[a-z0-9]+:[A-Za-z]+", action) for action in each["Action"]), each
        if each["Resource"] == "*":
            assert each["Sid"] in ANY_RESOURCE, each
            continue
        for resource in each["Resource"] if isinstance(each["Resource"], list) else [each["Resource"]]:
            _, partition, service, region, account, name = resource.split(":", 5)
            assert (partition, region or REGION) == ("aws", REGION), resource
            assert account == ACCOUNT or service == "s3" or name in ("subnet/*", "security-group/*"), resource
            assert name.strip("*/"), resource  # not all of a service


@pytest.mark.parametrize("whom", ["job", "client"])
@pytest.mark.parametrize("action", ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"])
def test_objects_of_another_project_are_not_allowed(capsys, whom, action):
    statements = policy(capsys, "--for", whom, *PLACE, *EVERYTHING)
    assert allows(statements, action, f"arn:aws:s3:::{BUCKET}/images/a/b", {})
    for key in (f"{BUCKET}/images-2/a", f"{BUCKET}/other", f"{BUCKET}-2/images/a"):
        assert not allows(statements, action, f"arn:aws:s3:::{key}", {})


@pytest.mark.parametrize("whom", ["job", "client"])
def test_only_the_projects_own_keys_are_listed(capsys, whom):
    statements = policy(capsys, "--for", whom, *PLACE, "--role", "Job", "--prefix", "teams/a")
    bucket = f"arn:aws:s3:::{BUCKET}"
    for prefix in ("teams/a/images/", "teams/a/images/train/jobs/0001/"):
        assert allows(statements, "s3:ListBucket", bucket, {"s3:prefix": prefix})
    for prefix in ("", "teams/", "teams/a/images", "teams/a/images-2/"):
        assert not allows(statements, "s3:ListBucket", bucket, {"s3:prefix": prefix})
    assert not allows(statements, "s3:ListBucket", bucket, {})  # the whole bucket


def test_one_role_may_be_passed_and_to_sagemaker_only(capsys):
    statements = policy(capsys, "--for", "client", *PLACE, "--role", "Job")
    role, to = f"arn:aws:iam::{ACCOUNT}:role/Job", {"iam:PassedToService": "sagemaker.amazonaws.com"}
    assert allows(statements, "iam:PassRole", role, to)
    assert not allows(statements, "iam:PassRole", role, {"iam:PassedToService": "ec2.amazonaws.com"})
    assert not allows(statements, "iam:PassRole", role, {})
    assert not allows(statements, "iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/Job2", to)


def test_an_arn_gives_the_account_and_keeps_the_path(capsys):
    arn = f"arn:aws:iam::{ACCOUNT}:role/service-role/Job"
    given = policy(capsys, "--for", "client", "--region", REGION, "--project", "p", environ={"ALGORUN_ROLE": arn})
    by_name = {each["Sid"]: each for each in given}
    assert by_name["PassRole"]["Resource"] == by_name["Role"]["Resource"] == arn
    assert by_name["Objects"]["Resource"] == f"arn:aws:s3:::sagemaker-{REGION}-{ACCOUNT}/p/*"


def test_a_key_is_granted_to_services_of_aws_only(capsys):
    statements = policy(capsys, *PLACE, *EVERYTHING)
    assert allows(statements, "kms:CreateGrant", KEY, {"kms:GrantIsForAWSResource": "true"})
    assert not allows(statements, "kms:CreateGrant", KEY, {"kms:GrantIsForAWSResource": "false"})
    assert not allows(statements, "kms:CreateGrant", KEY, {})
    assert allows(statements, "kms:GenerateDataKey", KEY, {})
    assert not any(action.startswith("kms:") for each in policy(capsys, *PLACE) for action in each["Action"])


def test_only_sagemaker_may_take_the_role_and_only_for_jobs_of_this_account(capsys):
    (statement,) = policy(capsys, "--for", "trust", *PLACE)
    assert (statement["Principal"], statement["Action"]) == ({"Service": "sagemaker.amazonaws.com"}, "sts:AssumeRole")
    assert statement["Condition"] == {
        "StringEquals": {"aws:SourceAccount": ACCOUNT},
        "ArnLike": {"aws:SourceArn": JOBS},
    }


def test_the_image_is_named_wherever_it_lies(capsys):
    other = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.5"
    found = {
        image: next(each["Resource"] for each in policy(capsys, *PLACE, "--image", image) if each["Sid"] == "Image")
        for image in (f"{IMAGE}@sha256:{'0' * 64}", other)
    }
    assert list(found.values()) == [
        f"arn:aws:ecr:{REGION}:{ACCOUNT}:repository/algorun",
        "arn:aws:ecr:us-east-1:763104351884:repository/pytorch-training",
    ]


def test_several_regions_are_all_allowed(capsys, tmp_path, monkeypatch):
    """Each with its own bucket, and with its copy of the image."""
    other = "us-west-2"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "algorun.toml").write_text(
        f'project = "images"\nbucket = "{BUCKET}"\nregion = ["{REGION}", "{other}"]\n[regions.{other}]\nbucket = "bucket-there"\n'
    )
    keys = f"{KEY},{KEY.replace(REGION, other)}"
    words = (
        "--account",
        ACCOUNT,
        "--role",
        "Job",
        "--vpc",
        "--shell",
        "--tuner",
        "--image",
        f"{IMAGE}:1",
        "--kms-key",
        keys,
    )
    whole = {whom: policy(capsys, "--for", whom, *words) for whom in ("job", "client", "trust")}
    for whom, region, bucket in itertools.product(whole, (REGION, other), (BUCKET, "bucket-there")):
        if (region == REGION) != (bucket == BUCKET):
            continue
        one = policy(
            capsys, "--for", whom, "--file", os.devnull, "--project", "images", "--region", region, "--bucket", bucket, *words[:-3],
            f"{IMAGE}:1".replace(REGION, region), "--kms-key", KEY.replace(REGION, region),
        )  # fmt: skip
        for statement in one:
            (same,) = [each for each in whole[whom] if each["Sid"] == statement["Sid"]]
            assert same["Action"] == statement["Action"]
            assert set(listed(statement.get("Resource", "*"))) <= set(listed(same.get("Resource", "*")))
    assert "us-west-2" in json.dumps(whole["trust"])
    assert main(["role", "--region", f"{REGION},cn-north-1", *words], {}) == 64
    assert "are in the partitions aws and aws-cn, and no role is in two" in capsys.readouterr().err


@pytest.mark.parametrize("named", [(), ("--bucket", BUCKET)])
def test_the_bucket_of_another_region_is_its_default_one(capsys, named):
    """As for submit: a bucket lies in one region, the preferred one."""
    words = ("--region", f"{REGION},us-west-2", "--account", ACCOUNT, "--project", "p", *named)
    (objects,) = [each for each in policy(capsys, *words) if each["Sid"] == "Objects"]
    first = BUCKET if named else f"sagemaker-{REGION}-{ACCOUNT}"
    assert objects["Resource"] == [f"arn:aws:s3:::{first}/p/*", f"arn:aws:s3:::sagemaker-us-west-2-{ACCOUNT}/p/*"]


def test_a_vpc_needs_rights_on_interfaces(capsys):
    statements = policy(capsys, *PLACE, "--vpc")
    own, shared = f"arn:aws:ec2:{REGION}:{ACCOUNT}:network-interface/eni-1", f"arn:aws:ec2:{REGION}:9:subnet/subnet-1"
    assert allows(statements, "ec2:CreateNetworkInterface", own, {})
    assert allows(statements, "ec2:CreateNetworkInterface", shared, {})
    assert not allows(statements, "ec2:DeleteNetworkInterface", shared, {})
    assert not any(action.startswith("ec2:") for each in policy(capsys, *PLACE) for action in each["Action"])


def test_a_shell_needs_rights_of_the_job_and_of_its_user(capsys):
    """Source: "Access a training container through AWS Systems Manager for remote debugging" in AWS's developer guide."""
    agent = {
        f"ssmmessages:{each}"
        for each in ("CreateControlChannel", "CreateDataChannel", "OpenControlChannel", "OpenDataChannel")
    }
    of_job = {action for each in policy(capsys, *PLACE, "--shell") for action in each["Action"]}
    assert of_job - {action for each in policy(capsys, *PLACE) for action in each["Action"]} == agent
    words = (*PLACE, "--for", "client", "--role", "Job")
    (session,) = [each for each in policy(capsys, *words, "--shell") if each["Sid"] == "Shell"]
    (switch,) = [each for each in policy(capsys, *words, "--shell") if each["Sid"] == "ShellSwitch"]
    assert switch["Action"] == ["sagemaker:UpdateTrainingJob"]
    assert session["Action"] == ["ssm:StartSession", "ssm:TerminateSession"]
    assert session["Condition"] == {
        "StringLike": {"ssm:resourceTag/aws:ssmmessages:target-id": "sagemaker-training-job:*"}
    }
    assert not any(each["Sid"] == "Shell" for each in policy(capsys, *words))


def test_the_tuner_needs_rights_of_its_own(capsys):
    words = ("--for", "client", *PLACE, "--role", "Job")
    (tuner,) = [each for each in policy(capsys, *words, "--tuner") if each["Sid"] == "Tuner"]
    assert tuner["Resource"] == f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:hyper-parameter-tuning-job/*"
    assert {action.rpartition(":")[2] for action in tuner["Action"]} == {
        "CreateHyperParameterTuningJob", "DescribeHyperParameterTuningJob", "StopHyperParameterTuningJob",
        "ListTrainingJobsForHyperParameterTuningJob", "AddTags",
    }  # fmt: skip
    assert not any(each["Sid"] == "Tuner" for each in policy(capsys, *words))
    (trust,) = policy(capsys, "--for", "trust", *PLACE, "--tuner")
    assert tuner["Resource"] in trust["Condition"]["ArnLike"]["aws:SourceArn"]


# -- partitions -------------------------------------------------------------------------------------------------------


def test_the_partition_of_every_region_is_botocores():
    for partition in create_loader().load_data("partitions")["partitions"]:
        for region in partition["regions"]:
            if not region.endswith("-global"):
                assert partition_of(region) == partition["id"], region


@pytest.mark.parametrize("region", ["cn-north-1", "us-gov-west-1", "us-iso-east-1", "eusc-de-east-1"])
def test_every_arn_is_of_the_regions_partition(capsys, region):
    for whom in ("job", "trust", "client"):
        words = ("--for", whom, "--region", region, "--account", ACCOUNT, "--project", "p", "--role", "Job", "--vpc")
        found = re.findall(r"arn:([^:]+):", json.dumps(policy(capsys, *words)))
        assert found
        assert set(found) == {partition_of(region)}


# -- refused ----------------------------------------------------------------------------------------------------------

WRONG = {
    "no account": (("--account", ""), "--account: no account is given; allowed: 12 digits; fix: --account ID; `aws sts"),
    "no account id": (("--account", "1234"), "--account: '1234' is not a number of 12 digits"),
    "no region": (("--region", ""), "--region: no region is given; fix: --region NAME, or AWS_REGION"),
    "every region": (("--region", "*"), "--region: '*' is not the name of an AWS region"),
    "no role": (("--for", "client"), "--role: no role is given, and --for client allows to pass one role only"),
    "every role": (("--for", "client", "--role", "*"), "--role: '*' is not a role's name or ARN"),
    "some roles": (("--for", "client", "--role", f"arn:aws:iam::{ACCOUNT}:role/J*"), "--role: 'J*' is not a role's name or ARN"),
    "a role elsewhere": (("--role", "arn:aws:iam::210987654321:role/J"), f"--account: {ACCOUNT} is not the account of --role, 210987654321"),
    "a role of China": (("--role", f"arn:aws-cn:iam::{ACCOUNT}:role/J"), f"is not in the partition of {REGION}, aws"),
    "every bucket": (("--bucket", "*"), "--bucket: '*' is not the name of a bucket"),
    "every folder": (("--prefix", "a/*"), "--prefix: 'a/*' means more than one folder in a policy"),
    "a variable": (("--prefix", "${aws:username}"), "--prefix: '${aws:username}' means more than one folder"),
    "every project": (("--project", "*"), "--project: '*' is not a name"),
    "a key's alias": (("--kms-key", "alias/k"), "--kms-key: 'alias/k' is not a key's ARN"),
    "every key": (("--kms-key", "*"), "--kms-key: '*' is not a key's ARN"),
    "an image elsewhere": (("--image", "docker.io/me/x:1"), "--image: 'docker.io/me/x:1' is not an image in ECR"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_would_widen_a_policy_is_refused(capsys, case):
    words, text = WRONG[case]
    assert main(["role", *PLACE, *words], {}) == 64
    shown = capsys.readouterr()
    assert shown.out == ""
    assert text in shown.err


# -- what the client calls --------------------------------------------------------------------------------------------


def needed(operation: str, service: str, arguments: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """The rights that a call needs: action, resource and the condition keys that AWS sets."""
    bucket, key = f"arn:aws:s3:::{arguments.get('Bucket')}", arguments.get("Key", "")
    if operation in ("HeadObject", "GetObject"):
        yield "s3:GetObject", f"{bucket}/{key}", {}
        yield "s3:ListBucket", bucket, {"s3:prefix": key}  # S3 asks for it if the key is missing
    elif operation == "ListObjectsV2":
        yield "s3:ListBucket", bucket, {"s3:prefix": arguments["Prefix"]}
    elif operation in ("PutObject", "CopyObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"):
        yield "s3:PutObject", f"{bucket}/{key}", {}
        if source := arguments.get("CopySource"):
            yield "s3:GetObject", f"arn:aws:s3:::{source['Bucket']}/{source['Key']}", {}
    elif operation == "DeleteObject":
        yield "s3:DeleteObject", f"{bucket}/{key}", {}
    elif operation == "DeleteObjects":
        for each in arguments["Delete"]["Objects"]:
            yield "s3:DeleteObject", f"{bucket}/{each['Key']}", {}
    elif service == "sagemaker" and not operation.startswith("List"):
        kind = "training" if "Training" in operation else "processing"
        name = arguments.get("TrainingJobName") or arguments.get("ProcessingJobName")
        job = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:{kind}-job/{str(name).lower()}"
        yield f"sagemaker:{operation}", job, {}
        if arguments.get("Tags"):
            yield "sagemaker:AddTags", job, {}
        if role := arguments.get("RoleArn"):
            yield "iam:PassRole", role, {"iam:PassedToService": "sagemaker.amazonaws.com"}
    elif service == "iam":
        yield f"iam:{operation}", f"arn:aws:iam::{ACCOUNT}:role/{arguments['RoleName']}", {}
    elif service == "logs":
        group = f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{arguments['logGroupName']}"
        stream = arguments.get("logStreamName")
        yield f"logs:{operation}", f"{group}:log-stream:{stream}" if stream else group, {}
    elif service == "ecr":
        repository = f"arn:aws:ecr:{REGION}:{arguments['registryId']}:repository/{arguments['repositoryName']}"
        yield f"ecr:{operation}", repository, {}
    elif operation == "HeadBucket":  # which asks for the bucket's region: S3 names it in a refusal, too
        pass
    elif operation != "GetCallerIdentity":  # which needs no right
        service = {"monitoring": "cloudwatch"}.get(service, service)
        yield f"{service}:{operation}", "*", {}


@pytest.fixture
def calls(monkeypatch):
    """What is called, while moto answers: service and operation with their arguments."""
    made: list[tuple[str, str, dict[str, Any]]] = []
    call = BaseClient._make_api_call

    def note(self: BaseClient, operation: str, arguments: dict[str, Any]) -> object:
        made.append((self.meta.service_model.endpoint_prefix.removeprefix("api."), operation, dict(arguments)))
        if operation == "GetDownloadUrlForLayer":  # moto does not know it
            return {"downloadUrl": "data:application/json,{}"}
        return call(self, operation, arguments)

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws(), monkeypatch.context() as patch:
        place = {"LocationConstraint": REGION}
        boto3.client("s3", region_name=REGION).create_bucket(Bucket=BUCKET, CreateBucketConfiguration=place)
        boto3.client("iam").create_role(RoleName="Job", AssumeRolePolicyDocument="{}")
        ecr = boto3.client("ecr", region_name=REGION)
        ecr.create_repository(repositoryName="algorun")
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": {"digest": "sha256:" + "0" * 64}, "layers": []}
        ecr.put_image(repositoryName="algorun", imageManifest=json.dumps(manifest), imageTag="1")
        patch.setattr(BaseClient, "_make_api_call", note)
        yield made


def test_the_clients_rights_cover_every_call_of_its_commands(capsys, calls, tmp_path, monkeypatch):
    statements = policy(capsys, "--for", "client", *PLACE, "--role", "Job", "--image", f"{IMAGE}:1")
    (tmp_path / "program").mkdir()
    monkeypatch.chdir(tmp_path / "program")
    (tmp_path / "program" / "train.py").write_text("")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "large").write_bytes(bytes(9 << 20))  # in parts
    where = ("--region", REGION, "--bucket", BUCKET, "--project", "images")
    submit = ("submit", *where, "--instance", "ml.m5.large", "--role", "Job", "--detach", "--tag", "a=b")
    lines = [
        (*submit, "--image", f"{IMAGE}:1", "train.py"),
        (*submit, "--image", "docker.io/me/x:1", "--in", "d=../data", "train.py"),
        (*submit, "--image", "docker.io/me/x:1", "--force", "--clean-state", "train.py"),
        (*submit, "--image", "docker.io/me/x:1", "--kind", "processing", "--task", "p", "train.py"),
        ("ls", *where), ("status", *where, "train"), ("logs", *where, "train"), ("logs", *where, "p"), ("stop", *where, "train"),
        ("fetch", *where, "--to", str(tmp_path / "to"), "train"),
    ]  # fmt: skip
    for line in lines:
        main(list(line), {})
    for service, operation, arguments in calls:
        for action, resource, context in needed(operation, service, arguments):
            assert allows(statements, action, resource, context), (operation, arguments)
    made = {operation for _, operation, _ in calls}
    assert made >= {
        "PutObject", "HeadObject", "GetObject", "ListObjectsV2", "UploadPart", "CreateTrainingJob", "CreateProcessingJob",
        "DescribeTrainingJob", "ListTrainingJobs", "GetRole", "DescribeImages", "DescribeLogStreams",
    }  # fmt: skip
    late = [  # what moto's jobs, which have ended at once, leave no occasion for
        ("StopTrainingJob", "sagemaker", {"TrainingJobName": "a"}),
        ("StopProcessingJob", "sagemaker", {"ProcessingJobName": "a"}),
        ("GetLogEvents", "logs", {"logGroupName": "/aws/sagemaker/TrainingJobs", "logStreamName": "a/algo-1"}),
        ("GetMetricData", "monitoring", {}),
        ("DeleteObjects", "s3", {"Bucket": BUCKET, "Delete": {"Objects": [{"Key": "images/train/state/a"}]}}),
    ]
    for operation, service, arguments in late:
        for action, resource, context in needed(operation, service, arguments):
            assert allows(statements, action, resource, context), operation
