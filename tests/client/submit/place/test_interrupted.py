"""Ctrl-C and SIGTERM while a request is sent: the command ends soon, says what is there, and leaves no halves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.client.submit.place.slow_s3 import SlowS3
from tests.conftest import clean_environ

pytest.importorskip("boto3")

# `submit` as it is when the request is made; its uploads go to the slow bucket.
PROGRAM = """
import faulthandler, hashlib, sys
from pathlib import Path
import boto3
from botocore.config import Config
from algorun_client.commands import main, submit
from algorun_client.request.model import Kind, Request, TaskAddress, Upload
from algorun_client.common.progress import PlainProgress
from algorun_client.submit.place.uploads import upload
from algorun_client.aws.s3_store import S3Store

url, folder = sys.argv[1:3]
address = TaskAddress(bucket="b-ucket", project="p", task="t")
mirror = address.input("train", "f")
data = Path(folder).read_bytes()
digest = hashlib.sha256(data).hexdigest()
large = [Upload(uri=f"{mirror}large-{n}", size=len(data), sha256=digest, path=Path(folder)) for n in range(4)]
small = [Upload(uri=f"{mirror}small-{n}", size=2_000_000, sha256="0", data=bytes(2_000_000)) for n in range(12)]

def run(options, environ):
    faulthandler.dump_traceback_later(30, exit=True)
    config = Config(retries={"mode": "adaptive", "total_max_attempts": 12}, s3={"addressing_style": "path"})
    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="a",
                          aws_secret_access_key="b", config=config)
    request = Request(kind=Kind.TRAINING, address=address, number=1, job="j", create={}, uploads=(*large, *small),
                      mirrors=(mirror,))
    upload(S3Store(client), request, dict, PlainProgress())
    return 0

submit.run = run
code = main.main(["submit", *sys.argv[3:], "x.py"])
sys.exit(code)
"""


def interrupted(tmp_path: Path, server: SlowS3, number: int, *words: str) -> tuple[int, str, str, float]:
    """Code, stdout and stderr of a client that gets a signal while bodies travel, and how long it took to end."""
    data = tmp_path / "large"
    data.write_bytes(bytes(20_000_000))
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, server.url, str(data), *words],
        env=clean_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 30
        while server.bodies < 16:  # all are under way
            assert time.monotonic() < deadline
            time.sleep(0.05)
        begin = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err, time.monotonic() - begin
    finally:
        process.kill()


def begun(server: SlowS3) -> list[str]:
    """The large files whose upload in parts has begun."""
    return sorted(each.removeprefix("POST ").split("?")[0] for each in server.seen if each.endswith("?uploads"))


def ended(server: SlowS3) -> list[str]:
    """Those whose parts were removed."""
    return sorted(each.removeprefix("DELETE ").split("?")[0] for each in server.seen if each.startswith("DELETE"))


def test_uploads_under_way_end_soon_and_leave_no_parts(tmp_path):
    with SlowS3(deaf=False).running() as server:
        code, _, err, took = interrupted(tmp_path, server, signal.SIGINT)
        assert code == 130, err
        *_, text, last = err.splitlines()
        assert text == (
            "algorun: interrupted: 0 of 16 objects are uploaded (0 B of 104.0 MB); no job was created; the same line goes on"
        )
        assert last == "algorun: exit 130, kind=interrupted source=client"
        assert "Traceback" not in err
        assert len(begun(server)) == 4
        assert begun(server) == ended(server)
    assert took < 30  # of more than a minute; about one second on a machine that has nothing else to do


def test_a_line_that_is_dead_keeps_nobody(tmp_path):
    with SlowS3(deaf=True).running() as server:
        code, out, err, took = interrupted(tmp_path, server, signal.SIGTERM, "--json")
        assert code == 130, err
        end = json.loads(out)
        assert (end["code"], end["kind"], end["source"]) == (130, "interrupted", "client")
        left = "; parts of large files may be left in the bucket, where only a lifecycle rule removes them"
        # Unless the signal came before bodies filled the kernel's buffers: calls that are not stuck end, parts are removed.
        assert end["text"].endswith(left) or begun(server) == ended(server), server.seen
        assert "Traceback" not in err
    assert took < 30  # of 60 s until boto3 gives up
