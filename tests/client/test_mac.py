"""The client on a laptop that is a Mac: all of its way to a job and back, in a Python without what only Linux has."""

from __future__ import annotations

import subprocess
import sys

import boto3
import pytest

from tests.client.submit.test_submit import no_credentials
from tests.conftest import ROOT
from tests.sagemaker_server.server_process import REGION, running

PROGRAM = """
import os
for step in range(3):
    print(f"train_loss: {1 / (step + 1):.3f}", flush=True)
open(os.environ["SM_MODEL_DIR"] + "/model.txt", "w").write("trained")
"""


@pytest.fixture
def on_a_mac(tmp_path, monkeypatch):
    no_credentials(monkeypatch)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    folder = tmp_path / "vision"
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "1.png").write_bytes(bytes(9 << 20))  # in parts
    (folder / "train.py").write_text(PROGRAM)

    def run(*words, code=0):
        argv = [sys.executable, "-m", "tests.client.without_linux", *words]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    run.folder = folder
    return run


@pytest.mark.slow
def test_from_a_mac_to_a_job_and_back(on_a_mac, tmp_path, monkeypatch):
    with running(tmp_path / "server", "--sync-s", "0.1") as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": REGION}
        boto3.client("s3", endpoint_url=server.moto_url, **keys).create_bucket(Bucket="b-ucket")
        place = ("--bucket", "b-ucket")
        line = (
            "--image",
            "algorun:test",
            "--role",
            "arn:aws:iam::123456789012:role/Job",
            "--instance",
            "ml.m5.large",
            "--hosts",
            "2",
        )
        said = on_a_mac("submit", *place, *line, "--in", "train=images", "train.py")
        assert "train_loss: 0.333" in said
        assert "is complete" in said or "has completed" in said
        assert "Completed" in on_a_mac("status", *place, "train")
        assert "vision-train-0001-" in on_a_mac("ls", *place)
        assert "train_loss: 0.500" in on_a_mac("logs", *place, "train")
        on_a_mac("fetch", *place, "--to", "home", "train")
        assert (on_a_mac.folder / "home" / "model" / "model.txt").read_text() == "trained"
        on_a_mac("report", "home")
        assert "train:loss" in (on_a_mac.folder / "home" / "report.html").read_text()
        assert "ok    bucket        b-ucket" in on_a_mac(
            "doctor", "--aws", *place, *line, "train.py", code=71
        )  # there is no such role


def test_what_needs_no_account(on_a_mac):
    assert "world_size 4" in on_a_mac("plan", "--hosts", "2", "--slots", "2", "ddp")
    assert "training job" in on_a_mac(
        "submit", "--dry-run", "--image", "i", "--role", "R", "--instance", "ml.m5.large", "train.py"
    )
    assert "_shtab_algorun" in on_a_mac("completion", "zsh")
    assert "train:loss" in on_a_mac("metric-definitions")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("simulate", "-j", "2x1", "train.py"), "simulate"),
        (("run", "train.py"), "algorun run"),
        (("submit", "--where", "local", "train.py"), "--where local"),
        (("ls", "--where", "local"), "--where local"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_needs_linux_says_so(words, what, on_a_mac):
    said = on_a_mac(*words, code=64)
    assert said.startswith(
        f"algorun: error: {what}: starts hosts on this machine, and they need Linux (this is darwin); fix: "
    )
