"""A service that throttles for a minute or lets the token expire, hosts that restart, and requests that it never gets."""

from __future__ import annotations

import hashlib
import re
import shlex
import threading
import time

import boto3
import pytest

from algorun_client import connection
from algorun_client.commands.main import main
from algorun_client.connection import PollTimes
from tests.client.killed_commands import Command
from tests.client.test_round_trip import job_in
from tests.conftest import clean_environ
from tests.sagemaker_server.between import between
from tests.sagemaker_server.server_process import REGION, running

BUCKET = "b-ucket"
AWS = ("--image", "algorun:test", "--role", "arn:aws:iam::123456789012:role/Job", "--instance", "ml.m5.large")
LINES = 300  # of each host and start
COUNTS = f"""
mkdir -p $SSM_INSTANCE_STATE; begun=$SSM_INSTANCE_STATE/begun
first=1; if [ -e $begun ]; then first={LINES + 1}; fi
for n in $(seq $first $((first + {LINES - 1}))); do echo "$SSM_HOST_RANK line $n"; done
if [ $first = 1 ]; then touch $begun; sleep 100; fi
"""
MINUTE_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(tmp_path_factory.mktemp("server"), "--stop-grace-s", "20", "--sync-s", "0.1") as process:
        yield process


@pytest.fixture(scope="module")
def proxy(server):
    urls = {"S3": server.moto_url, "STS": server.moto_url, "SAGEMAKER": server.url, "CLOUDWATCH_LOGS": server.url}
    with between(urls) as made:
        yield made


class Laptop:
    """A folder, an empty folder elsewhere, and the commands."""

    def __init__(self, folder, server, proxy):
        self.code, self.elsewhere, self.proxy = folder / folder.name, folder / "elsewhere", proxy
        self.code.mkdir()
        self.elsewhere.mkdir()
        self.environ = clean_environ(
            **server.environ() | proxy.environ(), ALGORUN_BUCKET=BUCKET, ALGORUN_FOLLOW_GRACE_S="2"
        )
        keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": REGION}
        self.s3 = boto3.client("s3", endpoint_url=server.moto_url, **keys)
        self.s3.create_bucket(Bucket=BUCKET)

    def start(self, *words, folder=None):
        folder = folder or self.elsewhere
        return Command(list(words), self.environ, folder, folder.parent / f"{words[0]}-{time.monotonic_ns()}.said")

    def submit(self, *words):
        command = self.start("submit", *AWS, *words, folder=self.code)
        return command.code(), command.said.read_text()


@pytest.fixture
def laptop(tmp_path, server, proxy):
    proxy.begin()
    yield Laptop(tmp_path, server, proxy)
    server.faults()


# Waits for a minute, or runs what another test has shown.
@pytest.mark.slow
def test_lines_of_hosts_that_restart_over_60_streams_followed_from_elsewhere(laptop, server, monkeypatch, capfd):
    code, said = laptop.submit("--detach", "--hosts", "2", "--spot", "--shell", COUNTS)
    assert code == 0, said
    job = job_in(said)
    server.faults(streams=30, late_s=1.0)

    def interrupt():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = laptop.s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{laptop.code.name}/shell/state/").get(
                "Contents", ()
            )
            if len([each for each in found if each["Key"].endswith("/begun")]) == 2:
                server.faults(interrupt=job)
                return
            time.sleep(0.1)

    thread = threading.Thread(target=interrupt)
    thread.start()
    for name, value in laptop.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(laptop.elsewhere)
    patient = PollTimes(poll_s=0.1, stream_s=0.0, state_s=0.2, streams_s=0.2, sweep_s=1.0, grace_s=1.5)
    monkeypatch.setattr(connection, "PollTimes", lambda **_: patient)
    assert main(["logs", "-f", job]) == 0
    thread.join()
    found = re.findall(r"^\[\d (algo-\d)\] (\d) line (\d+)$", capfd.readouterr().out, re.MULTILINE)
    wanted = [(f"algo-{rank + 1}", str(rank), str(n)) for rank in (0, 1) for n in range(1, 2 * LINES + 1)]
    assert sorted(found) == sorted(wanted)  # none missing, none double


@pytest.mark.slow
def test_a_minute_of_throttling(laptop, server):
    """In real time, for a submit and for a follower."""
    code, said = laptop.submit("--detach", "--task", "runs", "--shell", "sleep 100")
    assert code == 0, said
    job = job_in(said)
    follower = laptop.start("logs", "-f", job)
    time.sleep(3)
    laptop.proxy.begin()
    began = time.monotonic()
    server.faults(throttle_s=MINUTE_S)
    code, said = laptop.submit("--detach", "--task", "second", "--shell", "echo done")
    took = time.monotonic() - began
    assert code == 0, said
    assert took >= MINUTE_S - 1
    calls = [each.what for each in laptop.proxy.seen if each.service == "sagemaker" or each.service.endswith("logs")]
    print(f"submit took {took:.1f} s; calls while throttled: { {name: calls.count(name) for name in set(calls)} }")
    assert len(calls) < 150  # of two commands in a minute
    assert calls.count("CreateTrainingJob") <= 16  # the tries of a call that creates a job
    assert laptop.start("stop", job).code() == 0
    assert follower.code() == 74
    text = follower.said.read_text()
    assert text.count("AWS limits the calls of this account at the moment") == 1
    assert text.count("AWS answers again") == 1


@pytest.mark.slow
def test_the_line_that_an_expired_token_leaves_works(laptop, server):
    _, said = laptop.submit("--detach", "--shell", "echo begun; sleep 100")
    job = job_in(said)
    follower = laptop.start("logs", "-f", job)
    deadline = time.monotonic() + 60
    while "begun" not in (follower.said.read_text() if follower.said.exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    server.faults(expired=True)
    assert follower.code() == 75
    (line,) = re.findall(r"^algorun: come back with: algorun (.+)$", follower.said.read_text(), re.MULTILINE)
    server.faults(expired=False)
    again = laptop.start(*shlex.split(line))
    time.sleep(1)
    assert laptop.start("stop", job).code() == 0
    assert again.code() == 74
    assert "begun" in again.said.read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([f"--metric=m{n}=x([0-9])" for n in range(41)], "--metric: 41 definitions"),
        ([f"--hyperparameter=h{n}=1" for n in range(101)], "--hyperparameter: has 10\\d entries; allowed: up to 100"),
        (["--in", "train=data,mode=fastfile,extract"], "--in train: extract needs files on the host's disk"),
    ],
)
def test_what_sagemaker_would_refuse_never_leaves_this_machine(laptop, words, says):
    (laptop.code / "data").mkdir()
    (laptop.code / "data" / "a.tar").write_text("x")
    (laptop.code / "train.py").write_text("print()")
    code, said = laptop.submit("--in", "more=data", *words, "train.py")
    assert code == 64
    assert re.search(says, said), said
    assert not [str(each) for each in laptop.proxy.seen if each.method == "PUT" or "Create" in each.what]


@pytest.mark.slow
def test_an_argument_of_3000_characters_arrives_whole(laptop):
    word = "".join(chr(33 + n % 90) for n in range(2990)) + " \\ $é\n'\""
    (laptop.code / "train.py").write_text(
        "import hashlib, sys; print(len(sys.argv[1]), hashlib.sha256(sys.argv[1].encode()).hexdigest())"
    )
    code, said = laptop.submit("train.py", word)
    assert code == 0, said
    assert f"{len(word)} {hashlib.sha256(word.encode()).hexdigest()}" in said


def test_a_job_of_another_region_is_looked_for_in_the_one_that_is_named(laptop):
    there = "eu-west-1"
    laptop.s3.create_bucket(Bucket="there", CreateBucketConfiguration={"LocationConstraint": there})
    command = laptop.start("status", "nobody/nothing", "--region", there, "--bucket", "there")
    assert command.code() == 64
    assert f"no job is found in {there}; looked in s3://there/nobody/nothing" in command.said.read_text()
