"""Nothing that is written, printed or seen in a process list holds a secret: not the user's, not AWS's, not `.env`."""

from __future__ import annotations

import io
import os
import tarfile
import threading
from pathlib import Path

import boto3
import pytest

from tests.client.killed_commands import Command
from tests.client.test_round_trip import job_in
from tests.conftest import clean_environ
from tests.sagemaker_server.server_process import REGION, running

MARK = b"sEcReTmArK"
TOKEN, OF_AWS, IN_FILE = (f"{kind}-{MARK.decode()}-{n}" for n, kind in enumerate(("token", "aws", "file")))
PROGRAM = """
import os, sys, time
assert "TMARK" in os.environ["HF_TOKEN"].upper() and "TMARK" in os.environ["WANDB_API_KEY"].upper()
assert not os.path.exists(".env")
print("it has its token", flush=True)
time.sleep(0.5)
sys.exit(3)
"""
# The request itself, in a folder that only its owner may read: it stands for what DescribeTrainingJob answers.
OF_THE_REQUEST = "request.json"


class ProcessList:
    """Looks at the command lines of all processes, again and again."""

    def __init__(self) -> None:
        self.found: set[bytes] = set()
        self.looks = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(0.05):
            self.looks += 1
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    line = Path(f"/proc/{pid}/cmdline").read_bytes()
                except OSError:
                    continue
                if MARK in line:
                    self.found.add(line)


def with_mark(name: str, data: bytes) -> list[str]:
    """Where the mark stands in a file, also inside of an archive."""
    found = [name] if MARK in data else []
    if tarfile.is_tarfile(io.BytesIO(data)):
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for each in archive:
                found += with_mark(f"{name}!{each.name}", archive.extractfile(each).read() if each.isfile() else b"")
    return found


def in_folder(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != OF_THE_REQUEST]
    return [each for path in files for each in with_mark(str(path), path.read_bytes())]


@pytest.fixture
def place(request, tmp_path, monkeypatch):
    """Options and variables of a target, and what it has written."""
    secrets = {
        "HF_TOKEN": TOKEN,
        "WANDB_API_KEY": TOKEN,
        "AWS_SECRET_ACCESS_KEY": OF_AWS,
        "TMPDIR": str(tmp_path / "tmp"),
    }
    (tmp_path / "tmp").mkdir()
    if request.param == "local":
        root = tmp_path / "root"
        environ = clean_environ(ALGORUN_LOCAL_ROOT=str(root), AWS_ACCESS_KEY_ID="testing", **secrets)
        yield ["--where", "local"], environ, lambda: in_folder(root)
        return
    with running(tmp_path / "server") as server:
        keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": REGION}
        s3 = boto3.client("s3", endpoint_url=server.moto_url, **keys)
        s3.create_bucket(Bucket="b-ucket")

        def written() -> list[str]:
            objects = s3.list_objects_v2(Bucket="b-ucket")["Contents"]
            assert len(objects) >= 4  # code, claim, decision, output
            found = [
                each
                for item in objects
                for each in with_mark(item["Key"], s3.get_object(Bucket="b-ucket", Key=item["Key"])["Body"].read())
            ]
            return found + in_folder(tmp_path / "server")

        role = "arn:aws:iam::123456789012:role/Job"
        aws = ["--image", "algorun:test", "--role", role, "--instance", "ml.m5.large", "--bucket", "b-ucket"]
        yield aws, {**clean_environ(ALGORUN_FOLLOW_GRACE_S="1"), **server.environ(), **secrets}, written


# Waits for a minute, or runs what another test has shown.
@pytest.mark.slow(but=["local"])
@pytest.mark.parametrize("place", ["local", "server"], indirect=True)
def test_no_secret_is_written_printed_or_listed(place, tmp_path):
    options, environ, written = place
    code = tmp_path / "work"
    code.mkdir()
    (code / "train.py").write_text(PROGRAM)
    (code / ".env").write_text(f"PASSWORD={IN_FILE}")
    (code / "algorun.toml").write_text('env = ["WANDB_API_KEY"]\n')
    said = tmp_path / "said"

    def run(*words: str) -> int:
        return Command(list(words), environ, code, said).code()

    submit = ("submit", *options, "--hosts", "2", "--env", "HF_TOKEN")
    with ProcessList() as processes:
        assert run(*submit, "train.py") == 64
        assert ".env: keys and secrets do not go up" in said.read_text()
        (code / ".algorunignore").write_text(".env\n")
        assert run(*submit, "--dry-run", "train.py") == 0
        assert run(*submit, "train.py") == 3, said.read_text()
        job = job_in(said.read_text())
        where = options[:2] if options[0] == "--where" else []
        for command in ("status", "logs"):
            assert run(command, *where, job) == 0
        assert run("fetch", *where, "--to", "home", job) == 0
    text = said.read_bytes()
    assert text.count(b"it has its token") >= 2
    assert b"HF_TOKEN" in text  # with ***, and a warning
    assert MARK not in text
    assert processes.looks > 5
    assert not processes.found
    assert not written()
    assert not in_folder(code / "home")
    assert not in_folder(tmp_path / "tmp")
