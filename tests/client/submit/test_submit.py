"""`algorun submit` as a whole: the dry run, and that the same request is sent; on this machine and through boto3."""

from __future__ import annotations

import gc
import json
import os
import tarfile
import tempfile

import pytest
from moto import mock_aws

from algorun.common.errors import UserError
from algorun_client.aws import aws_session
from algorun_client.commands.main import run as main
from algorun_client.files import archive
from algorun_client.request.model import Request
from algorun_client.submit import submit
from algorun_client.submit.read.material import Material
from algorun_client.submit.read.read import SubmitOrder
from tests.conftest import clean_environ

REGION = "eu-west-1"
JOB_FILE = """
project = "chain"
[task.data]
kind = "processing"
run = ["bash", "make.sh", "two words", "LONG"]
[task.train]
run = ["main.py", "LONG", "$HOME"]
hosts = 2
in.train = "task:data/output/set"
in.more = { from = "more", shard = true }
""".replace("LONG", "x" * 3000)
MAKE = """
test "$1" = "two words" && test ${#2} = 3000 || exit 9
mkdir -p "$SSM_OUTPUT/set" && echo 42 > "$SSM_OUTPUT/set/answer"
"""
MAIN = """
import os, sys
answer = open(os.environ["SM_CHANNEL_TRAIN"] + "/answer").read().strip()
print("answer", answer, [len(word) for word in sys.argv[1:]], sys.argv[2], sorted(os.listdir(os.environ["SM_CHANNEL_MORE"])), flush=True)
open(os.environ["SM_MODEL_DIR"] + "/model", "w").write(answer)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    folder = tmp_path / "chain"
    (folder / "more").mkdir(parents=True)
    for name, text in {
        "algorun.toml": JOB_FILE,
        "make.sh": MAKE,
        "main.py": MAIN,
        "more/1": "1",
        "more/2": "2",
    }.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def environ(tmp_path):
    return clean_environ(ALGORUN_LOCAL_ROOT=str(tmp_path / "root"))


def alive():
    """Everything in memory that holds a request or what it is made of."""
    gc.collect()
    return [each for each in gc.get_objects() if type(each) in (Request, Material, SubmitOrder)]


def test_nothing_of_the_request_is_kept_while_its_job_is_followed(here, environ, tmp_path, monkeypatch):
    """A large code archive lies in a temporary folder; following may take days."""
    others = alive()  # other tests keep some
    seen = []

    def followed(*_: object, **__: object) -> int:
        archives = list((tmp_path / "tmp").rglob("code.tar.gz"))
        seen.append((archives, [each for each in alive() if not any(each is other for other in others)]))
        return 0

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(archive, "IN_MEMORY", 10)
    monkeypatch.setattr(submit, "follow_job", followed)
    assert main(["submit", "--where", "local", "--task", "data"], environ) == 0
    assert seen == [([], [])]


def dry(capfd, environ, *words):
    """What --dry-run --json prints."""
    capfd.readouterr()
    assert main(["submit", "--dry-run", "--json", *words], environ) == 0
    return json.loads(capfd.readouterr().out)


# `make test` has such a chain in ../test_chains.py.
@pytest.mark.slow
def test_a_chain_on_this_machine(here, environ, tmp_path, capfd):
    """A processing task feeds a training task; what a dry run shows is what is sent, and long arguments arrive whole."""
    tasks = tmp_path / "root" / "s3" / "local" / "chain"
    for task in ("data", "train"):
        shown = dry(capfd, environ, "--where", "local", "--task", task)
        assert not (tasks / task).exists()  # a dry run never writes
        assert main(["submit", "--where", "local", "--task", task], environ) == 0
        sent = json.loads((tasks / task / "jobs" / "0001" / "request.json").read_text())
        assert sent == shown
        assert sent["unknown"] == []
    out = capfd.readouterr().out  # of the training job
    for number in (1, 2):
        assert f"answer 42 [3000, 5] $HOME ['{number}']" in out
    archive = next((tasks / "train" / "jobs").rglob("model.tar.gz"))
    with tarfile.open(archive) as tar:
        assert tar.extractfile("model").read() == b"42"


def test_a_task_that_was_never_run_feeds_nothing(here, environ, tmp_path):
    with pytest.raises(UserError, match="task 'data' has no completed job; fix: algorun submit --task data"):
        main(["submit", "--dry-run", "--where", "local", "--task", "train"], environ)
    assert not (tmp_path / "root").exists()


def no_credentials(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/none",
        "AWS_SHARED_CREDENTIALS_FILE": "/none",
    }.items():
        monkeypatch.setenv(name, value)


LINE = ("--file", "none.toml", "--image", "i", "--instance", "ml.m5.large")


def test_a_dry_run_needs_no_credentials(here, environ, monkeypatch, capfd):
    no_credentials(monkeypatch)
    (here / "none.toml").write_text("")
    shown = dry(capfd, environ, *LINE, "--role", "R", "--in", "train=s3://b-ucket/x", "main.py", "--epochs", "1")
    assert set(shown["unknown"]) >= {"RoleArn", "TrainingJobName", "InputDataConfig[0].DataSource.S3DataSource.S3Uri"}
    assert shown["create"]["HyperParameters"]["algorun_args"] == '["--epochs", "1"]'
    assert main(["submit", "--dry-run", *LINE, "main.py"], environ) == 0
    said = capfd.readouterr()
    assert "unknown until AWS is asked\n  AlgorithmSpecification.TrainingImage\n" in said.out
    assert "not looked up: " in said.err


def test_a_dry_run_needs_no_network(here, environ, monkeypatch, capfd):
    """With credentials: as without, and soon."""
    no_credentials(monkeypatch)
    for service in ("STS", "S3", "IAM"):
        monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", "http://127.0.0.1:9")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setattr(aws_session, "FOLLOWING", 1)
    (here / "none.toml").write_text("")
    assert main(["submit", "--dry-run", *LINE, "--role", "R", "main.py"], environ) == 0
    said = capfd.readouterr()
    assert "unknown until AWS is asked" in said.out
    assert "RoleArn" in said.out
    assert said.err.startswith("algorun: not looked up: GetCallerIdentity: EndpointConnectionError: Could not connect")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("role", [("--role", "Nobody"), ()])
def test_a_dry_run_with_credentials_ends_with_the_error_of_submit(here, environ, account, role):
    (here / "none.toml").write_text("")
    text = "--role: 'Nobody' does not exist in account" if role else "--role: none is given, and arn:.* is no role"
    for dry_run in (("--dry-run",), ()):
        with pytest.raises(UserError, match=text) as error:
            main(["submit", *dry_run, *LINE, "--bucket", "b-ucket", *role, "main.py"], environ)
        assert error.value.code == 71


def test_without_credentials_submit_is_71(here, environ, monkeypatch):
    no_credentials(monkeypatch)
    (here / "none.toml").write_text("")
    with pytest.raises(UserError, match="no credentials are found") as error:
        main(["submit", *LINE, "main.py"], environ)
    assert error.value.code == 71


@pytest.fixture(scope="module")
def account():
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        no_credentials(patch)
        for name, value in {
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": REGION,
        }.items():
            patch.setenv(name, value)
        session = aws_session.open_session()
        for bucket in ("b-ucket", "empty"):
            session.client("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
        session.client("iam").create_role(RoleName="Job", AssumeRolePolicyDocument="{}")
        yield session


def test_with_credentials_a_dry_run_is_what_boto3_gets(here, environ, account, capfd):
    (here / "none.toml").write_text("")
    for key in ("images/1", "images/2", "images-old/3"):
        account.client("s3").put_object(Bucket="b-ucket", Key=key, Body=b"x")
    line = [
        *LINE,
        "--role",
        "Job",
        "--bucket",
        "b-ucket",
        "--hosts",
        "2",
        "--in",
        "train=s3://b-ucket/images,shard",
        "--tag",
        "a=b",
        "main.py",
        "é\n$x",
    ]
    shown = dry(capfd, environ, *line)
    assert shown["unknown"] == []
    assert account.client("sagemaker").list_training_jobs()["TrainingJobSummaries"] == []
    assert main(["submit", "--detach", *line], environ) == 0
    got = account.client("sagemaker").describe_training_job(TrainingJobName=shown["job"])
    for key in (
        "HyperParameters",
        "InputDataConfig",
        "OutputDataConfig",
        "ResourceConfig",
        "RoleArn",
        "StoppingCondition",
    ):
        assert got[key] == shown["create"][key], key
    stored = account.client("s3").get_object(Bucket="b-ucket", Key="chain/main/jobs/0001/request.json")["Body"].read()
    assert json.loads(stored) == shown


@pytest.mark.parametrize(
    ("words", "text", "code"),
    [
        (["--role", "Nobody", "main.py"], "--role: 'Nobody' does not exist", 71),
        (
            ["--role", "Job", "--in", "t=s3://no-bucket/x", "main.py"],
            "--in t: s3://no-bucket/x: .*fix: check bucket, key and --region",
            64,
        ),
        (["--role", "Job", "--in", "t=s3://empty/x", "main.py"], "--in t: s3://empty/x has no object", 64),
        (
            ["--role", "Job", "--metric", "m=x", "--tag", "a=b", "--in", "t=nowhere", "main.py"],
            "--in t: .*nowhere' does not exist",
            64,
        ),
        (["--role", "Job", "--hosst", "2", "main.py"], "unrecognized arguments: --hosst; fix: algorun submit -h", 64),
        (
            ["--role", "Job", "--nproc-per-node", "4", "main.py"],
            "unrecognized arguments: --nproc-per-node; fix: --slots N in place of torchrun's --nproc-per-node",
            64,
        ),
        (
            ["--role", "Job", "--hyperparameter", "h=" + "x" * 2501, "main.py"],
            "--hyperparameter h: has 2501 characters",
            64,
        ),
    ],
)
def test_bad_input_is_one_error_before_anything_is_sent(here, environ, account, words, text, code):
    (here / "none.toml").write_text("")
    with pytest.raises(UserError, match=text) as error:
        main(["submit", *LINE, "--bucket", "empty", *words], environ)
    assert error.value.code == code
    assert account.client("s3").list_objects_v2(Bucket="empty").get("KeyCount") == 0
