"""Arguments from a file in the code folder, for command lines that no hyperparameter can hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from algorun.commands import command_line
from algorun.common.errors import UserError
from algorun.job.config import prepared, read_config
from algorun.job.request import LaunchRequest, request
from algorun.plan import cluster, plan, render
from tests.conftest import PROGRAMS, machine

LONG = "x" * 3000


def job(base: Path, environ: dict[str, str] | None = None, **hyperparameters: object):
    config = base / "input" / "config"
    config.mkdir(parents=True, exist_ok=True)
    raw = {key: json.dumps(value) for key, value in {"sagemaker_program": "train.py", **hyperparameters}.items()}
    (config / "hyperparameters.json").write_text(json.dumps(raw))
    (config / "resourceconfig.json").write_text('{"hosts": ["algo-1"], "current_host": "algo-1"}')
    return read_config(LaunchRequest(from_job=True), {"SAGEMAKER_BASE_DIR": str(base), **(environ or {})})


@pytest.fixture
def base(tmp_path) -> Path:
    (tmp_path / "code" / "deep").mkdir(parents=True)
    (tmp_path / "code" / "train.py").write_text("")
    return tmp_path


def shown(config) -> str:
    found = machine()
    slots = cluster.assumed_slots(config, cluster.own_slots(config, found))
    return render.plan_text(plan.make(config, cluster.resolve(config, slots), found, PROGRAMS))


def test_an_argument_of_3000_characters_arrives_whole(base):
    (base / "code" / "deep" / "args.json").write_text(json.dumps(["--text", LONG, 8, True, None, "ü"]))
    found = job(base, algorun_args_file="deep/args.json", lr=0.1)
    assert found.entry.args == ("--text", LONG, "8", "True", "", "ü")
    text = shown(found)
    assert "read the program's arguments from deep/args.json in " in text
    assert "  # hyperparameter algorun_args_file" in text


def test_the_file_of_code_that_must_be_fetched_is_read_after_the_fetch(tmp_path):
    (tmp_path / "code").mkdir()
    config = job(tmp_path, algorun_args_file="args.json", sagemaker_submit_directory="s3://b/code.tar.gz")
    assert config.entry.kind == "pending"
    assert "from args.json in " in shown(config)
    assert "once the code is there" in shown(config)
    with pytest.raises(UserError, match=r"args.json' is not a file in .*; fix: add it, or drop hyperparameter"):
        prepared(config)
    (tmp_path / "code" / "train.py").write_text("")
    (tmp_path / "code" / "args.json").write_text('["--epochs", 3]')
    assert prepared(config).entry.args == ("--epochs", "3")


def test_two_sources_of_arguments_contradict(base):
    with pytest.raises(UserError, match="algorun_args_file: 'a.json' contradicts algorun_args; fix: drop one"):
        job(base, algorun_args_file="a.json", algorun_args=["--a"])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "is not a file in"),
        (b'["--a", ', r"is not JSON: line 1 column 9: .*; allowed: a JSON list"),
        (b'{"a": 1}', "contains a JSON dict; allowed: a JSON list"),
        (b'["\xff"]', "is not UTF-8"),
        (b"[" * 300 + b"]" * 300, "is not usable JSON: nested deeper"),
        (b'["a", "b\\u0000"]', "argument 2: contains a zero byte"),
        (b'["\\ud800"]', "argument 1: contains U\\+D800"),
        (json.dumps(["x" * 131_072]).encode(), "too long for one argument"),
    ],
)
def test_a_missing_or_damaged_file_is_one_clear_error(content, says, base):
    if content is not None:
        (base / "code" / "args.json").write_bytes(content)
    with pytest.raises(UserError, match=says) as caught:
        job(base, algorun_args_file="args.json")
    assert caught.value.where.startswith("hyperparameter algorun_args_file")
    assert caught.value.code == 64


@pytest.mark.parametrize("name", ["/etc/passwd", "../args.json", "deep/../../args.json", "link.json", "deep", "\ud800"])
def test_no_file_outside_the_code_folder_is_read(name, base):
    (base / "args.json").write_text("[]")
    (base / "code" / "link.json").symlink_to("../args.json")
    with pytest.raises(UserError, match="algorun_args_file"):
        job(base, algorun_args_file=name)


# -- algorun run -----------------------------------------------------------------------------------------------------


def run(base: Path, *words: str):
    return read_config(request(command_line.parse(["run", *words])), {"SAGEMAKER_BASE_DIR": str(base)})


def test_a_command_line_may_name_the_file_too(base):
    (base / "code" / "args.json").write_text('["--lr", 0.1]')
    config = run(base, "--cwd", str(base / "code"), "--args-file", "args.json", "train.py")
    assert config.entry.args == ("--lr", "0.1")
    assert f"arguments from args.json in {base}/code" in shown(config)
    assert "# --args-file" in shown(config)


def test_code_of_a_command_line_is_fetched_before_its_program_is_looked_for(tmp_path):
    config = run(tmp_path, "--code", "/opt/ml/code.tar.gz", "--args-file", "a.json", "train.py")
    assert config.setup is not None
    assert config.setup.uri == f"{tmp_path}/code.tar.gz"  # on a host whose job folder is not /opt/ml
    assert config.setup.option == "--code"
    assert config.entry.kind == "pending"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    (tmp_path / "code" / "a.json").write_text('["b"]')
    ready = prepared(config)
    assert (ready.entry.kind, ready.entry.args, ready.entry.cwd) == ("script", ("b",), f"{tmp_path}/code")
    assert f"PYTHONPATH={tmp_path}/code" in shown(ready)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--code", "s3://b/k"], "--code: names code, but no program in it"),
        (["--code", "s3://b/k", "-m", "package"], "--code: names code, but no program in it"),
        (["--code", "http://b/k", "x.py"], "--code: has the scheme 'http'"),
        (["--args-file", "a.json"], "--args-file: 'a.json' needs a program without other arguments"),
        (["--args-file", "a.json", "x.py", "--lr"], "--args-file: 'a.json' needs a program without other arguments"),
        (["--args-file", "/a.json", "x.py"], "--args-file: '/a.json' is not a path inside"),
        (
            ["--args-file", "a.json", "x.py"],
            "--args-file: 'a.json' is not a file in .*; fix: add it, or drop --args-file",
        ),
    ],
)
def test_contradictions_on_the_command_line_are_refused(words, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=says):
        run(tmp_path, *words)


def test_the_state_folder_as_working_folder(base):
    config = job(base, algorun_cwd="state")
    assert config.entry.cwd == f"{base}/checkpoints/algo-1"
    assert config.entry.target == f"{base}/code/train.py"
    (base / "code" / "state").mkdir()
    assert job(base, algorun_cwd="state").entry.cwd == f"{base}/code/state"
    with pytest.raises(
        UserError, match="algorun_cwd: .*/absent is not a folder; fix: name a folder of the user's code, or"
    ):
        job(base, algorun_cwd="absent")
