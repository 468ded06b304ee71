"""Hosts as containers, up to the docker command line. tests/e2e/test_local_containers.py runs them for real."""

from __future__ import annotations

import contextlib
import io
import os
import signal
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from algorun_client.commands.main import main
from algorun_client.local import DockerEngine, container_guard, job_description
from algorun_client.local.container_hosts import ContainerHosts
from algorun_client.local.containers import Containers, first_process
from algorun_client.local.job_folder import JobFolder, LocalSettings
from algorun_client.request.model import Kind
from tests.client.local.local_jobs import BUCKET, channel, processing
from tests.conftest import clean_environ

ADDRESS = "unix:///run/docker.sock"
IMAGE = "sha256:" + "5" * 64
SECRET = "s3cret-of-the-user"
# A docker client that notes its words and answers as FAKE_.. say.
FAKE = """#!/bin/sh
echo "$*" >> "$FAKE_FOLDER/calls"
case "$*" in
    *"context inspect"*) echo "${FAKE_ADDRESS:-unix:///run/docker.sock}"; exit 0 ;;
    *version*) [ -z "$FAKE_REFUSAL" ] || { echo "$FAKE_REFUSAL" >&2; exit 1; }; echo 27.1; exit 0 ;;
    *"image inspect"*) [ -z "$FAKE_ABSENT" ] || { echo "Error: No such image: x" >&2; exit 1; }
        echo 'sha256:1 {"org.algorun.request-format":"0"}'; exit 0 ;;
esac
for word; do
    case $before in --env-file) cat "$word" > "$FAKE_FOLDER/environment"; echo "$MANY" > "$FAKE_FOLDER/many" ;; esac
    before=$word
done
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A folder with a docker program, which keeps its words in `calls`."""
    folder = tmp_path / "fake"
    folder.mkdir()
    (folder / "docker").write_text(FAKE)
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.defpath}")
    monkeypatch.setenv("FAKE_FOLDER", str(folder))
    return folder


@pytest.fixture
def submit(tmp_path, monkeypatch, capsys, fake):
    """Runs `algorun submit --where local` in a folder with a program; returns its exit code and what it says."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')")

    def run(*words: str, **environ: str) -> tuple[int, str]:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        given = clean_environ(ALGORUN_LOCAL_ROOT=str(tmp_path / "root"), FAKE_FOLDER=str(fake))
        code = main(["submit", *words, "train.py"], given)
        return code, capsys.readouterr().err

    return run


LOCALLY = ("--where", "local", "--docker", "--image", "mine:1")
CANNOT_CONNECT = "Cannot connect to the Docker daemon at unix:///run/docker.sock. Is the docker daemon running?"
DENIED = "permission denied while trying to connect to the Docker daemon socket at unix:///run/docker.sock"


@pytest.mark.parametrize(
    ("words", "environ", "what"),
    [
        (LOCALLY, {"PATH": "/nowhere"}, "--docker: there is no program docker on PATH; fix: install Docker, or drop"),
        (LOCALLY, {"FAKE_REFUSAL": CANNOT_CONNECT}, f"--docker: no Docker engine answers at {ADDRESS}; fix: start it"),
        (
            LOCALLY,
            {"FAKE_REFUSAL": DENIED},
            "--docker: you may not use /run/docker.sock; fix: `sudo usermod -aG docker",
        ),
        (
            LOCALLY,
            {"FAKE_ADDRESS": "ssh://far"},
            "--docker: the engine ssh://far is on another machine and cannot mount",
        ),
        (
            LOCALLY,
            {"FAKE_ABSENT": "1"},
            "--image: 'mine:1' is not on this machine; fix: `docker pull mine:1`, or build",
        ),
        (LOCALLY[:3], {}, "--docker: no image is named; fix: --image algorun:cpu, or `image` in the job file"),
        (LOCALLY[2:], {}, "--docker: is for jobs on this machine; fix: add --where local, or drop --docker"),
        ((*LOCALLY, "--cwd", "state"), {}, "--image: mine:1 is too old for --cwd state"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_created(submit, tmp_path, words, environ, what):
    code, said = submit(*words, **environ)
    assert code == 64
    assert said.startswith(f"algorun: error: {what}")
    assert said.count("\n") == 1
    assert not (tmp_path / "root").exists()


def test_a_job_file_may_say_docker_for_whenever_its_tasks_run_here(submit, tmp_path):
    (tmp_path / "algorun.toml").write_text("docker = true\n")
    assert "no image is named; fix: --image algorun:cpu" in submit("--where", "local")[1]
    code, said = submit("--where", "local", "--no-docker", "--dry-run")
    assert (code, said) == (0, "")
    code, said = submit("--dry-run", "--image", "mine:1", "--instance", "ml.m5.large", AWS_EC2_METADATA_DISABLED="true")
    assert code == 0, said  # on AWS the key means nothing


def hosts(root: Path, kind: Kind, request: dict[str, object]) -> ContainerHosts:
    folder = JobFolder.of(root, kind, "job")
    (folder.hosts / "algo-1").mkdir(parents=True)
    containers = Containers(DockerEngine(ADDRESS), IMAGE)
    return ContainerHosts(folder, job_description.described(kind, request), containers, LocalSettings().stop_grace_s)


def request(**more: object) -> dict[str, object]:
    return {
        "TrainingJobName": "job",
        "AlgorithmSpecification": {"TrainingInputMode": "File", **more.pop("AlgorithmSpecification", {})},
        "OutputDataConfig": {"S3OutputPath": f"{BUCKET}/out"},
        "ResourceConfig": {"InstanceCount": 2},
        **more,
    }


def value(words: list[str], option: str) -> list[str]:
    return [after for word, after in pairwise(words) if word == option]


def test_a_container_is_made_as_sagemaker_makes_its_own(tmp_path):
    root = tmp_path / "root, with a comma"
    inputs = [channel("all", f"{BUCKET}/data"), {**channel("fast", f"{BUCKET}/data"), "InputMode": "FastFile"}]
    made = hosts(root, Kind.TRAINING, request(InputDataConfig=inputs))
    folder = root / "jobs/training/job"
    (folder / "hosts/submitted").mkdir()
    words = made.words("algo-1", folder / "hosts/algo-1", "0,1")
    assert words[-2:] == [IMAGE, "train"]
    (name,) = value(words, "--name")
    assert name.startswith("algorun-job-")
    assert name.endswith("-algo-1")
    assert value(words, "--hostname") == value(words, "--network-alias") == ["algo-1"]
    assert [name] == [f"{network}-algo-1" for network in value(words, "--network")]
    assert value(words, "--gpus") == ['"device=0,1"']
    assert value(words, "--stop-timeout") == ["120"]
    assert value(words, "--label") == [f"org.algorun.local-job={folder}", f"org.algorun.local-root={root}"]
    here = f"source={folder}/hosts"
    assert value(words, "--mount") == [  # a line of CSV each
        f'"type=bind","{here}/algo-1","target=/opt/ml"',
        f'"type=bind","{here}/submitted","target=/opt/algorun-submitted","readonly"',
        f'"type=bind","{here}/algo-1/input/data/fast","target=/opt/ml/input/data/fast","readonly"',
    ]


def test_a_container_mounts_a_file_system_read_only(tmp_path):
    source = {
        "FileSystemId": "fs-01234567",
        "FileSystemType": "EFS",
        "DirectoryPath": "/",
        "FileSystemAccessMode": "ro",
    }
    made = hosts(
        tmp_path,
        Kind.TRAINING,
        request(InputDataConfig=[{"ChannelName": "train", "DataSource": {"FileSystemDataSource": source}}]),
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "file-systems").mkdir()
    (tmp_path / "file-systems" / "fs-01234567").symlink_to(tmp_path / "data")  # Docker mounts what a link names
    words = made.words("algo-1", tmp_path / "jobs/training/job/hosts/algo-1", "")
    assert (
        value(words, "--mount")[-1]
        == f'"type=bind","source={tmp_path}/data","target=/opt/ml/input/data/train","readonly"'
    )


def test_entrypoint_and_arguments_are_those_of_the_request(tmp_path):
    given = {"ContainerEntrypoint": ["python3", "-X", "dev"], "ContainerArguments": ["--lr", "0.1"]}
    words = hosts(tmp_path, Kind.TRAINING, request(AlgorithmSpecification=given)).words("algo-1", tmp_path, "")
    assert value(words, "--entrypoint") == ["python3"]
    assert words[words.index(IMAGE) :] == [IMAGE, "-X", "dev", "--lr", "0.1"]
    assert "--gpus" not in words
    only = request(AlgorithmSpecification={"ContainerArguments": ["serve"]})
    assert hosts(tmp_path / "2", Kind.TRAINING, only).words("algo-1", tmp_path, "")[-2:] == [IMAGE, "serve"]
    words = hosts(tmp_path / "3", Kind.PROCESSING, processing("job")).words("algo-1", tmp_path, "")
    assert words[-1] == IMAGE
    assert "--entrypoint" not in words


def test_a_runner_whose_guard_was_killed_removes_its_containers_itself(fake, tmp_path):
    made = hosts(tmp_path / "root", Kind.TRAINING, request())
    folder = tmp_path / "root/jobs/training/job"
    made.start({"algo-1": folder / "hosts/algo-1"}, {"algo-1": tmp_path / "stream"})
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_text().split("\0")
            if "algorun_client.local.container_guard" in words and str(folder) in words:
                os.kill(int(path.parent.name), signal.SIGKILL)
    made.close()
    assert f"ps --all --filter label=org.algorun.local-job={folder}" in (fake / "calls").read_text()


def test_the_guard_of_a_killed_runner_looks_for_what_the_engine_creates_late(tmp_path, monkeypatch):
    """The engine still carries out the last `docker create`; afterwards the container's label and name are known."""
    job, calls = tmp_path / "root/jobs/training/job", []
    answers = iter(["", "", "late"])

    def call(engine: DockerEngine, *words: str) -> str:
        calls.append(" ".join(words))
        return next(answers, "") if "--quiet" in words else ""

    monkeypatch.setattr(DockerEngine, "call", call)
    monkeypatch.setattr(container_guard, "LATER_S", (0.01, 0.01), raising=False)
    monkeypatch.setattr(container_guard.signal, "signal", lambda *_: None)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    assert container_guard.main([ADDRESS, str(job)]) == 0
    assert "rm --force --volumes late" in calls
    asked = f"--filter label=org.algorun.local-job={job}"
    assert calls[0] == f"ps --all {asked} --quiet --no-trunc"
    assert calls[2].startswith(f"ps --all {asked} --filter name=algorun-job-")


def test_a_guard_that_its_runner_asks_looks_once(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(DockerEngine, "call", lambda _, *words: (calls.append(words), "")[1])
    monkeypatch.setattr(container_guard.signal, "signal", lambda *_: None)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b".")))
    assert container_guard.main([ADDRESS, str(tmp_path / "root/jobs/training/job")]) == 0
    assert [words[0] for words in calls] == ["ps", "network"]


def test_no_value_of_a_variable_is_in_a_process_list(fake, tmp_path):
    variables = {"TOKEN": SECRET, "MANY": f"first\n{SECRET}", "EMPTY": ""}
    made = hosts(tmp_path / "root", Kind.TRAINING, request(Environment=variables, EnableNetworkIsolation=True))
    tree, stream = tmp_path / "root/jobs/training/job/hosts/algo-1", tmp_path / "stream"
    made.start({"algo-1": tree}, {"algo-1": stream})
    made.close()
    calls = (fake / "calls").read_text()
    assert SECRET not in calls
    assert " --internal algorun-job-" in calls  # the network of an isolated job
    assert f"--host {ADDRESS} create --env-file " in calls
    assert f"TOKEN={SECRET}\nEMPTY=\nTRAINING_JOB_NAME=job\n" in (fake / "environment").read_text()
    assert (fake / "many").read_text() == f"first\n{SECRET}\n"
    assert not list((tmp_path / "root/jobs/training/job").glob("environment-*"))


@pytest.mark.parametrize(
    ("cgroup", "answer", "pid"),
    [
        ("0::/system.slice/docker-abc123.scope", "42 abc123", 42),
        ("12:cpu:/docker/abc123\n11:memory:/docker/abc123", "42 abc123", 42),
        ("0::/user.slice", "42 abc123", None),  # a process of another container that has this number here
        ("0::/docker-abc123.scope", "43 abc123", None),
        ("0::/docker-abc123.scope", "0 abc123", None),
        ("0::/docker-abc123.scope", "", None),
    ],
)
def test_the_process_of_a_container_is_one_that_this_machine_shows(tmp_path, cgroup, answer, pid):
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "cgroup").write_text(cgroup)
    engine = SimpleNamespace(call=lambda *_: f"{answer}\n")
    assert first_process(engine, "algorun-job-algo-1", tmp_path) == pid  # type: ignore[arg-type]
