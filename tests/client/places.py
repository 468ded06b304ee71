"""The two places where jobs of tests run: this machine, and a server that boto3 takes for AWS."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from algorun_client import connection
from algorun_client.connection import PollTimes
from tests.conftest import clean_environ
from tests.sagemaker_server.server_process import REGION, ServerProcess, running

BUCKET = "b-ucket"
HERE = ("--where", "local")


@contextlib.contextmanager
def server_with_bucket(root: Path, *options: str) -> Iterator[ServerProcess]:
    """Runs a server whose account has BUCKET."""
    with running(root, *options, "--sync-s", "0.1") as process:
        keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
        boto3.client("s3", endpoint_url=process.moto_url, region_name=REGION, **keys).create_bucket(Bucket=BUCKET)
        yield process


def go_to(
    monkeypatch: pytest.MonkeyPatch, folder: Path, pace: PollTimes, root: Path, server: ServerProcess | None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Makes `folder` the current one and this process a client of the server, or of this machine with its jobs below `root`.

    Returns the variables and the options of the client's commands.
    """
    monkeypatch.chdir(folder)
    monkeypatch.setattr(connection, "LOCAL", pace)
    monkeypatch.setattr(connection, "PollTimes", lambda **_: pace)
    if server is None:
        return clean_environ(ALGORUN_LOCAL_ROOT=str(root)), HERE
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)
    return clean_environ(ALGORUN_BUCKET=BUCKET), ()
