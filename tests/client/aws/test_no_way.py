"""Keys, but no way to AWS: every command says so soon, with the address that does not answer."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time

import pytest

from tests.client.submit.test_submit import no_credentials

BOUND_S = 10.0


@contextlib.contextmanager
def deaf():
    """A port that lets nobody in, as behind a firewall that drops packets: its queue is full."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        waiting = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(server.getsockname())
            waiting.append(client)
        yield server.getsockname()[1]
        for client in waiting:
            client.close()


@contextlib.contextmanager
def silent():
    """A port that takes connections and never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield server.getsockname()[1]


@contextlib.contextmanager
def closed():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    yield port


SUBMIT = ("submit", "--image", "i", "--role", "R", "--instance", "ml.m5.large", "--shell", "true")
CASES = [
    *((wall, SUBMIT) for wall in (deaf, silent, closed)),
    *((deaf, words) for words in (("ls",), ("status", "train"), ("logs", "train"), ("doctor", "--aws"))),
    (silent, ("ls",)),
]


# Each waits for its own limit.
@pytest.mark.slow(but=["deaf-submit", "silent-ls", "closed-submit"])
@pytest.mark.parametrize(("wall", "words"), CASES, ids=[f"{wall.__name__}-{words[0]}" for wall, words in CASES])
def test_no_command_waits_for_minutes(wall, words, monkeypatch, tmp_path):
    no_credentials(monkeypatch)
    with wall() as port:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "eu-west-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "NO_PROXY": "127.0.0.1",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        begin = time.monotonic()
        argv = [sys.executable, "-m", "algorun", *words]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
        took = time.monotonic() - begin
    assert done.returncode == 75, done.stderr
    assert f"http://127.0.0.1:{port}/" in done.stdout + done.stderr
    assert took < BOUND_S + 5  # starting Python and boto3 beside other tests
