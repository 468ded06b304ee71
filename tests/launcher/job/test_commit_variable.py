"""Which program of a command line has a commit, and how it reaches the page of `simulate` and `run`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from algorun.common.code_commit import CHANGED
from algorun.common.fast_dataclasses import replace
from algorun.job.commit_variable import of_command_line
from algorun.job.request import LaunchRequest
from tests.clones import head, made
from tests.conftest import clean_environ

NAME = "ALGORUN_CODE_COMMIT"
SCRIPT = LaunchRequest(target="src/train.py")


@pytest.fixture
def clone(tmp_path):
    return made(tmp_path / "clone")


def test_a_script_that_git_does_not_track_is_a_change(clone, monkeypatch):
    monkeypatch.chdir(clone)
    assert of_command_line(SCRIPT, {}) == {NAME: head(clone)}
    (clone / "src" / "new.py").write_text("")
    assert of_command_line(SCRIPT, {}) == {NAME: head(clone)}
    assert of_command_line(LaunchRequest(target="src/new.py"), {}) == {NAME: f"{head(clone)} {CHANGED}"}
    assert of_command_line(LaunchRequest(target="src.train", module=True), {}) == {NAME: head(clone)}
    assert of_command_line(LaunchRequest(target="nvidia-smi"), {}) == {NAME: head(clone)}


def test_a_script_elsewhere_has_the_commit_of_its_own_folder(clone, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert of_command_line(LaunchRequest(target="clone/src/train.py", cwd=str(clone)), {}) == {NAME: head(clone)}
    outside = LaunchRequest(target=str(clone / "src" / "train.py"), cwd=str(tmp_path / "elsewhere"))
    assert of_command_line(outside, {}) == {NAME: head(clone)}


def test_code_that_is_not_the_user_s_or_not_here_has_none(clone, monkeypatch):
    monkeypatch.chdir(clone)
    for wish in (
        LaunchRequest(target="ddp"),
        LaunchRequest(from_job=True),
        replace(SCRIPT, code="s3://b-ucket/code.tar.gz"),
    ):
        assert of_command_line(wish, {}) == {}
    assert of_command_line(SCRIPT, {NAME: ""}) == {}


@pytest.mark.parametrize("command", [("simulate", "-j", "1x1"), ("run", "--slots", "1")])
def test_a_job_on_this_machine_notes_the_commit(clone, command, tmp_path):
    environ = clean_environ(SAGEMAKER_BASE_DIR=str(tmp_path / "ml")) if command[0] == "run" else clean_environ()
    argv = [sys.executable, "-m", "algorun", *command, "src/train.py"]
    subprocess.run(argv, cwd=clone, env=environ, check=True, capture_output=True)
    (found,) = [*clone.glob("algorun-simulate/*/output/data/result.json"), *tmp_path.glob("ml/output/data/result.json")]
    assert json.loads(found.read_text())["ran"]["commit"] == head(clone)
