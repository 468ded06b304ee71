"""What a user may get wrong with `submit`: one line with the fix, and neither an object nor a job is made."""

from __future__ import annotations

import boto3
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError
from moto import mock_aws

from algorun_client.commands.main import main
from algorun_client.files import scan

REGION, BUCKET = "eu-west-1", "b-ucket"
IMAGE = f"123456789012.dkr.ecr.{REGION}.amazonaws.com/algorun:1"
RIGHT = {
    "--region": REGION,
    "--bucket": BUCKET,
    "--image": "docker.io/me/x:1",
    "--instance": "ml.m5.large",
    "--role": "arn:aws:iam::123456789012:role/x",
    "--file": "good.toml",
    "--hosts": "3",
}
# What is said otherwise than in RIGHT, the text, and the exit code.
CASES: dict[str, tuple[dict[str, str], str, int]] = {
    "an unknown role": ({"--role": "Nobody"}, "--role: 'Nobody' does not exist in account 123456789012; fix: --role NAME or ARN", 71),
    "a missing image": ({"--image": IMAGE}, f"--image: {IMAGE} does not exist", 64),
    "an image of another region": (
        {"--image": IMAGE.replace(REGION, "us-east-1")},
        "lies in us-east-1, and the job runs in eu-west-1: SageMaker wants both in one region; fix: `./build.sh push --region eu-west-1`", 64,
    ),
    "an image of another region by its digest": (
        {"--image": f"{IMAGE.replace(REGION, 'us-east-1')}@sha256:{'0' * 64}"}, "lies in us-east-1, and the job runs in eu-west-1", 64,
    ),
    "a subnet that does not exist": (
        {"--subnets": "subnet-0123456789abcdef0", "--security-groups": "sg-0123456789abcdef0"}, "--subnets: ", 64,
    ),
    "a job file that is none": ({"--file": "bad.toml"}, "bad.toml: is not TOML", 64),
    "an absent job file": ({"--file": "none.toml"}, "--file: none.toml: No such file or directory; fix: name a readable file", 64),
    "an unknown key": ({"--file": "key.toml"}, "key.toml: unknown key 'imagee'", 64),
    "no bucket": ({"--bucket": "no-bucket"}, "--bucket: no-bucket: The specified bucket does not exist; fix: create it", 64),
    "no such region": ({"--region": "mars-1"}, "--region: 'mars-1' is not a region of SageMaker", 64),
    "objects for some hosts": ({"--in": f"t=s3://{BUCKET}/images,shard"}, "--in t: shard: 1 objects for 3 hosts leave paid hosts", 64),
    "files for some hosts": ({"--in": "t=../data,shard"}, "--in t: shard: 1 objects for 3 hosts leave paid hosts", 64),
    "no object": ({"--in": f"t=s3://{BUCKET}/none"}, f"--in t: s3://{BUCKET}/none has no object; fix: check bucket, key", 64),
    "what FastFile cannot do": ({"--in": "t=../data,mode=fastfile,extract"}, "--in t: extract needs files on the host's disk", 64),
    "a loop of links": ({"--in": "t=../loop"}, "--in t: again -> . is a loop of symbolic links; fix: remove it", 64),
    "too many files": ({"--in": "t=../many"}, "many has 20 files or more; allowed: fewer than 20; fix: pack them into some tar files", 64),
}  # fmt: skip


@pytest.fixture(scope="module")
def account():
    """A bucket with one object. Returns S3's client."""
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        client = boto3.client("s3", region_name=REGION)
        client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        client.put_object(Bucket=BUCKET, Key="images/1", Body=b"1")
        yield client


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The current folder, with a program; beside it data."""
    (tmp_path / "program").mkdir()
    monkeypatch.chdir(tmp_path / "program")
    for name, text in {"train.py": "", "good.toml": "", "bad.toml": "a = [1", "key.toml": "imagee = 'x'"}.items():
        (tmp_path / "program" / name).write_text(text)
    for name, files in {"data": 1, "loop": 0, "many": 20}.items():
        (tmp_path / name).mkdir()
        for number in range(files):
            (tmp_path / name / str(number)).write_text("1")
    (tmp_path / "loop" / "again").symlink_to(".")
    monkeypatch.setattr(scan, "MOST_FILES", 20)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("program")
def test_bad_input_is_one_error_with_its_fix_and_makes_nothing(account, capsys, case):
    wrong, text, code = CASES[case]
    words = [word for option in {**RIGHT, **wrong}.items() for word in option]
    assert main(["submit", *words, "train.py"], {}) == code
    err = capsys.readouterr().err
    (error,) = [line for line in err.splitlines() if line.startswith("algorun: error: ")]
    assert text in error
    assert "Traceback" not in err
    assert [each["Key"] for each in account.list_objects_v2(Bucket=BUCKET)["Contents"]] == ["images/1"]
    assert boto3.client("sagemaker", region_name=REGION).list_training_jobs()["TrainingJobSummaries"] == []


# Right -> the calls that need it, and how S3 refuses them. HEAD has no text.
CALLS = {
    "s3:ListBucket": (("ListObjectsV2",), "AccessDenied: Access Denied"),
    "s3:GetObject": (("GetObject", "HeadObject"), "403: Forbidden"),
    "s3:PutObject": (("PutObject", "CreateMultipartUpload"), "AccessDenied: Access Denied"),
    "kms:GenerateDataKey": (("PutObject",), "AccessDenied: User: arn:x is not authorized to perform: kms:GenerateDataKey on y"),
}  # fmt: skip


@pytest.mark.parametrize("right", CALLS)
@pytest.mark.usefixtures("program")
def test_a_bucket_without_a_right_is_one_error_that_names_both_and_makes_nothing(account, capsys, monkeypatch, right):
    denied, refused = CALLS[right]
    asked: list[str] = []
    call = BaseClient._make_api_call

    def refuse(self: BaseClient, operation: str, arguments: object) -> object:
        if operation in denied:
            asked.append(operation)
            code, message = refused.split(": ", 1)
            raise ClientError({"Error": {"Code": code, "Message": message}}, operation)
        return call(self, operation, arguments)

    words = [word for option in RIGHT.items() for word in option]
    with monkeypatch.context() as patch:
        patch.setattr(BaseClient, "_make_api_call", refuse)
        assert main(["submit", *words, "--in", "t=../data", "train.py"], {}) == 71
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("algorun: error: ")]
    assert error == (
        f"algorun: error: bucket {BUCKET}: you have no right to {right}, or the bucket is another account's ({asked[0]}: {refused}); "
        f"fix: ask for {right} (`algorun role --for client --role ROLE --bucket {BUCKET}` prints all that is needed), or name another --bucket"
    )
    made = {each["Key"] for each in account.list_objects_v2(Bucket=BUCKET)["Contents"]} - {"images/1"}
    # What may be written but not read may be known only after the claim, which the next line finds.
    assert made <= ({"program/train/jobs/0001/request.json"} if right == "s3:GetObject" else set())
    assert boto3.client("sagemaker", region_name=REGION).list_training_jobs()["TrainingJobSummaries"] == []
    for key in made:
        account.delete_object(Bucket=BUCKET, Key=key)
