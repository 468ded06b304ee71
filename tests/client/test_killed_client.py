"""A client that is killed at any of its requests, and the same line again: one job, and its inputs whole."""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import socket
import tarfile
import time
from urllib.parse import urlsplit

import boto3
import pytest

from tests.client.killed_commands import Command
from tests.conftest import clean_environ
from tests.sagemaker_server.between import between
from tests.sagemaker_server.server_process import running

GROUP = "/aws/sagemaker/TrainingJobs"
BUCKET, KILLED = "b-ucket", -9
FILES = {f"part-{n}": f"record {n}\n" * 50 for n in range(3)} | {"old": "is removed before the second submit\n"}
ENDED = ("Completed", "Failed", "Stopped")
SAYS_ITS_INPUTS = 'cat "$SM_CHANNEL_TRAIN"/part-* | sha256sum; cat code.txt; sleep 300'
WHOLE = hashlib.sha256("".join(FILES[f"part-{n}"] for n in range(3)).encode()).hexdigest()
KINDS = {
    "training": ("TrainingJob", lambda create: create["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"]),
    "processing": ("ProcessingJob", lambda create: create["ProcessingInputs"][0]["S3Input"]["S3Uri"]),
}


class Place:
    """The server, the proxy in front of it, and boto3's clients behind the proxy."""

    def __init__(self, server, proxy, folder):
        self.proxy, self.folder = proxy, folder
        behind = server.environ()
        keys = {key: behind[f"AWS_{key.upper()}"] for key in ("access_key_id", "secret_access_key")}
        session = boto3.session.Session(**{f"aws_{key}": each for key, each in keys.items()}, region_name="us-east-1")
        self.s3 = session.client("s3", endpoint_url=server.moto_url)
        self.sagemaker = session.client("sagemaker", endpoint_url=server.url)
        self.logs = session.client("logs", endpoint_url=server.url)
        self.s3.create_bucket(Bucket=BUCKET)
        self.environ = clean_environ(**behind | proxy.environ())

    def objects(self, prefix):
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return {each["Key"]: each["Size"] for page in pages for each in page.get("Contents", ())}

    def content(self, uri):
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        return self.s3.get_object(Bucket=bucket, Key=key)["Body"].read()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with (
        running(tmp_path_factory.mktemp("server"), "--stop-grace-s", "5") as server,
        between({"S3": server.moto_url, "STS": server.moto_url, "SAGEMAKER": server.url}) as proxy,
    ):
        yield Place(server, proxy, tmp_path_factory.mktemp("laptop"))


class Task:
    """A folder with a program and data, and its submit line."""

    def __init__(self, place, name, kind):
        self.place, self.name, self.kind = place, name, kind
        self.folder = place.folder / name
        (self.folder / "data").mkdir(parents=True)
        (self.folder / "code.txt").write_text("the code\n")
        for file, text in FILES.items():
            (self.folder / "data" / file).write_text(text)
        role = "arn:aws:iam::123456789012:role/Job"
        self.words = ["submit", "--detach", "--kind", kind, "--project", "killed", "--task", name, "--bucket", BUCKET]
        self.words += ["--image", "algorun:test", "--role", role, "--instance", "ml.m5.large", "--in", "train=data"]
        self.words += ["--code", ".", "--shell", SAYS_ITS_INPUTS]

    def submit(self, at=lambda *_: False, *, done=True):
        """Runs the line; kills it at the request that `at` chooses. Returns its exit code and what it said."""
        said = self.folder.with_name(f"{self.name}.said")
        started = []

        def kill():
            while not started:
                time.sleep(0.001)
            started[0].kill()

        self.place.proxy.begin(at, kill, done=done)
        before = said.stat().st_size if said.exists() else 0
        started.append(Command(self.words, self.place.environ, self.folder, said))
        return started[0].code(), said.read_text()[before:]

    def jobs(self):
        head, _ = KINDS[self.kind]
        call = getattr(self.place.sagemaker, f"list_{self.kind}_jobs")
        return [each[f"{head}Name"] for each in call(NameContains=f"killed-{self.name}-")[f"{head}Summaries"]]

    def lines(self, job):
        """Of its only host."""
        streams = self.place.logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=job)["logStreams"]
        answers = [
            self.place.logs.get_log_events(logGroupName=GROUP, logStreamName=each["logStreamName"]) for each in streams
        ]
        return [each["message"] for answer in answers for each in answer["events"]]

    def described(self, job):
        head, _ = KINDS[self.kind]
        return getattr(self.place.sagemaker, f"describe_{self.kind}_job")(**{f"{head}Name": job})

    def check_whole(self, job):
        """What the job reads is in the bucket, byte for byte, and nothing else."""
        _, source = KINDS[self.kind]
        create = self.described(job)
        folder = source(create)
        prefix = folder.removeprefix(f"s3://{BUCKET}/")
        present = {path.name: path.read_text() for path in (self.folder / "data").iterdir()}
        assert {key.removeprefix(prefix) for key in self.place.objects(prefix)} == present.keys()
        for name, text in present.items():
            assert self.place.content(folder + name).decode() == text
        (code,) = re.findall(rf"s3://{BUCKET}/[^\"\s]+/code/[0-9a-f]+\.tar\.gz", json.dumps(create, default=str))
        with tarfile.open(fileobj=io.BytesIO(self.place.content(code))) as archive:
            assert archive.extractfile("code.txt").read() == b"the code\n"

    def finish(self, number=1):
        """The same line again, after whatever happened: one job."""
        before = self.jobs()
        assert number - 1 <= len(before) <= number
        if len(before) == number:  # it was created only when everything was there
            self.check_whole(before[0])
        code, said = self.submit()
        assert code == 0, said
        job, *older = self.jobs()
        assert len(older) == number - 1
        done = "runs already" if len(before) == number else "is created"
        assert f"job {job} (execution {number}) {done}" in said
        self.check_whole(job)
        claims = [key for key in self.place.objects(f"killed/{self.name}/jobs/") if key.endswith("/request.json")]
        assert claims == [f"killed/{self.name}/jobs/{n:04d}/request.json" for n in range(1, number + 1)]
        return job

    def stop(self, job):
        head, status = KINDS[self.kind][0], "InProgress"
        getattr(self.place.sagemaker, f"stop_{self.kind}_job")(**{f"{head}Name": job})
        deadline = time.monotonic() + 30
        while status not in ENDED:
            assert time.monotonic() < deadline, status
            time.sleep(0.05)
            status = self.described(job)[f"{head}Status"]


def at(number):
    """Chooses a request by its number."""
    return lambda each, n: n == number


@pytest.mark.slow
def test_a_client_killed_while_it_uploads_before_and_after_it_creates(place):
    task = Task(place, "thrice", "training")
    create = lambda each, n: each.what == "CreateTrainingJob"  # noqa: E731
    assert task.submit(lambda each, n: each.method == "PUT" and "/input/" in each.what)[0] == KILLED
    assert task.submit(create, done=False)[0] == KILLED
    assert not task.jobs()
    assert task.submit(create)[0] == KILLED
    assert len(task.jobs()) == 1
    job = task.finish()
    deadline = time.monotonic() + 30
    while [f"[0 algo-1] {WHOLE}  -", "[0 algo-1] the code"] != task.lines(job)[-2:]:
        assert time.monotonic() < deadline, task.lines(job)
        time.sleep(0.1)
    task.stop(job)


def killed_once(task, number, at_request, *, done=True):
    """`number`: of the execution that the client is to make when it is killed."""
    code, said = task.submit(at(at_request), done=done)
    assert code == KILLED, said
    task.stop(task.finish(number))


# `make test` kills one client while it uploads, before it creates its job, and right after that.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "first", "every"),
    [("training", 1, 1), ("processing", 1, 6), ("processing", 4, 6)],
    ids=["training", "processing-1", "processing-4"],
)
def test_a_client_killed_at_each_of_its_requests(place, kind, first, every):
    """Both kinds differ in a few requests, so of a processing job every third one is enough."""
    undisturbed = Task(place, f"{kind}-undisturbed-{first}", kind)
    job = undisturbed.finish()
    moments = [str(each) for each in place.proxy.seen]
    undisturbed.stop(job)
    if first == 1:
        killed_once(Task(place, f"{kind}-0", kind), 1, 1, done=False)
    for moment in range(first, len(moments) + 1, every):
        killed_once(Task(place, f"{kind}-{moment}", kind), 1, moment)
    print(f"{kind}: {len(moments)} moments: {moments}")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(4, 20, 2))  # nothing is written before
def test_a_client_killed_at_every_16th_request_of_an_execution_with_other_data(place, first):
    """A file is new, one has changed, and one is gone: the old data and the new have a folder each."""
    for moment in range(first, 99, 16):
        task = Task(place, f"other-data-{moment}", "training")
        task.stop(task.finish())
        (task.folder / "data" / "new").write_text("new\n")
        (task.folder / "data" / "part-0").write_text("changed\n")
        (task.folder / "data" / "old").unlink()
        code, said = task.submit(at(moment))
        if code == 0:  # all requests were made
            task.stop(task.jobs()[0])
            break
        assert code == KILLED, said
        task.stop(task.finish(2))
    assert moment > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_client_killed_again_and_again(place, seed):
    chosen = random.Random(seed)
    task = Task(place, f"again-{seed}", "training")
    for _ in range(4):
        code, said = task.submit(at(chosen.randint(1, 12)), done=chosen.random() < 0.5)
        assert code in (KILLED, 0), said  # 0: it needed fewer requests than that
    task.stop(task.finish())


def test_a_client_that_dies_while_it_sends_an_object_leaves_none(place):
    """As S3 does. An object of which half came would be taken for the whole one, whose name has its hash."""
    address = urlsplit(place.environ["AWS_ENDPOINT_URL_S3"])
    head = f"PUT /{BUCKET}/torn HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: 10\r\n\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=30) as client:
        client.sendall(head.encode() + b"half")
        client.shutdown(socket.SHUT_WR)
        client.recv(1)
    assert place.objects("torn") == {}
