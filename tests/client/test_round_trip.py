"""From a folder to a job and home again, by the commands: on this machine, and through boto3 against the test server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from algorun_client import connection
from algorun_client.commands.main import main
from algorun_client.connection import PollTimes
from algorun_report.folder.read import read_report
from algorun_report.run_report import Axis
from tests.client.places import go_to, server_with_bucket
from tests.sagemaker_server.server_process import REGION, ServerProcess

PROGRAM = """
import os, signal, sys, time
rank, what = os.environ["RANK"], sys.argv[1]
host = os.environ["SM_CURRENT_HOST"]
print(f"{what} on {host}, train_loss: 0.5", flush=True)
state = f"/{os.environ['SM_MODEL_DIR']}/../checkpoints"
os.makedirs(state, exist_ok=True)
if what == "fail" and rank == "1":
    sys.exit(3)
if what == "wait":
    def save(*_):
        open(f"{state}/saved-{rank}", "w").write("step 7")
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("waiting", flush=True)
    time.sleep(120)
if what == "count":
    for n in range(1, 601):
        print(f"{host} line {n:04d}", flush=True)
open(os.environ["SM_MODEL_DIR"] + f"/{host}", "w").write("model")
"""
QUICK = PollTimes(poll_s=0.1, stream_s=0.0, state_s=0.2, streams_s=0.2, sweep_s=1.0, grace_s=0.5, silence_s=10.0)
AWS = (
    "--image",
    "algorun:test",
    "--role",
    "arn:aws:iam::123456789012:role/Job",
    "--instance",
    "ml.m5.large",
    "--bucket",
    "b-ucket",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with server_with_bucket(tmp_path_factory.mktemp("server"), "--stop-grace-s", "20") as process:
        yield process


class Laptop:
    """A folder with a program, an empty folder of another machine, and a place where jobs run."""

    def __init__(self, folder: Path, environ: dict[str, str], place: tuple[str, ...], submit: tuple[str, ...]) -> None:
        self.code, self.elsewhere = folder / "images", folder / "elsewhere"
        self.code.mkdir()
        self.elsewhere.mkdir()
        (self.code / "train.py").write_text(PROGRAM)
        self.environ, self.place, self._submit = environ, place, submit
        self.submit = ("submit", *place, *submit, "--hosts", "2", "--slots", "1")

    def __call__(self, *words: str, folder: Path | None = None) -> int:
        os.chdir(folder or self.elsewhere)
        return main([words[0], *self.place, *words[1:]], self.environ)

    def send(self, *words: str) -> int:
        os.chdir(self.code)
        return main([*self.submit, *words], self.environ)


@pytest.fixture(params=["local", "server"])
def laptop(request, tmp_path, monkeypatch):
    server = request.getfixturevalue("server") if request.param == "server" else None
    environ, place = go_to(monkeypatch, tmp_path, QUICK, tmp_path / "root", server)
    if server is None:
        yield Laptop(tmp_path, environ, place, ())
        return
    task = re.sub(r"[^a-z]+", "-", request.node.originalname)[:40].strip("-")
    yield Laptop(tmp_path, environ, place, (*AWS, "--project", f"images-{task}"))
    server.faults()


@pytest.fixture
def of_server(laptop, server):
    """The server, for tests that tell it what to do wrong."""
    return server


ON_THE_SERVER = pytest.mark.parametrize("laptop", ["server"], indirect=True)


def job_in(text: str) -> str:
    return re.search(r"job (\S+-\d{4}-[0-9a-f]{6})", text)[1]


# Through boto3 `make test` keeps one whole way; requests, failures and stops: client/test_server.py.
@pytest.mark.slow(but=["server"])
def test_a_job_runs_and_comes_home_from_an_empty_folder(laptop, capfd):
    assert laptop.send("train.py", "go") == 0
    said = capfd.readouterr()
    assert {"[algo-1]", "[algo-2]"} <= {line.split()[0] for line in said.out.splitlines()}
    assert "go on algo-2, train_loss: 0.5" in said.out
    job = job_in(said.err)
    assert said.err.splitlines()[-1] == f"algorun: job {job} has completed: exit 0, kind=completed source=job"
    assert laptop("fetch", job) == 0
    home = laptop.elsewhere / job
    assert (home / "model" / "algo-1").read_text() == "model"
    assert json.loads((home / "output" / "result.json").read_text())["code"] == 0
    for host in ("algo-1", "algo-2"):
        (log,) = (home / "logs").glob(f"{host}-*.log")
        assert f"go on {host}" in log.read_text()
        assert len(log.with_suffix(".times").read_text().split()) == log.read_text().count("\n")
    drawn = read_report(home)
    assert (drawn.job, drawn.status, drawn.axis, drawn.notices) == (job, "Completed", Axis.TIME, ())
    assert [each.name for each in drawn.phases] == ["Starting", "Downloading", "Training", "Uploading"]
    assert [(each.label, *each.values) for each in drawn.metrics[0].series] == [("algo-1", 0.5), ("algo-2", 0.5)]
    used = {each.name: [one.label for one in each.series] for each in drawn.utilization}
    assert (used["memory"], used["disk"]) == (["algo-1", "algo-2"], ["algo-1", "algo-2"])
    assert "GPU" not in used
    capfd.readouterr()
    laptop.environ["XDG_CACHE_HOME"] = str(laptop.elsewhere / "cache")
    assert laptop("report", "--json", job) == 0
    page, end = (json.loads(line) for line in capfd.readouterr().out.splitlines())
    assert (page["file"], page["metrics"][0]["values"], end["kind"]) == (f"{job}.html", 2, "done")
    assert "Hosts at work" in (laptop.elsewhere / page["file"]).read_text()
    assert laptop("ls", "--json") == 0
    assert job in [json.loads(line)["job"] for line in capfd.readouterr().out.splitlines()]
    assert laptop("status", "--json", job) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[0])["outcome"]["kind"] == "completed"
    assert laptop("stop", job) == 0
    assert "nothing to stop" in capfd.readouterr().out


@pytest.mark.slow(but=["local"])
def test_a_failure_on_host_2_ends_with_its_code_and_the_logs_of_all_hosts(laptop, capfd):
    assert laptop.send("train.py", "fail") == 3
    said = capfd.readouterr().err.splitlines()
    job = job_in(said[-1])
    assert said[-1] == f"algorun: job {job} has failed: exit 3, kind=failed source=job"
    assert said[-3].startswith("  exit: rank 1 on algo-2, exit 3")
    assert said[-2] == "  fail on algo-2, train_loss: 0.5"  # it has printed its last words to stdout
    assert laptop("fetch", "--what", "logs", "--to", "home", job) == 0
    assert sorted(each.name[:6] for each in (laptop.elsewhere / "home" / "logs").glob("*.log")) == ["algo-1", "algo-2"]
    assert read_report(laptop.elsewhere / "home").root_cause.startswith("exit: rank 1 on algo-2, exit 3")
    capfd.readouterr()
    assert laptop("logs", "-f", "--json", job) == 3
    end = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (end["code"], end["kind"], end["source"]) == (3, "failed", "job")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow(but=["local"])
def test_a_detached_job_is_joined_stopped_and_its_checkpoint_fetched(laptop, capfd):
    assert laptop.send("--detach", "train.py", "wait") == 0
    job = job_in(capfd.readouterr().err)

    def waits() -> bool:
        laptop("logs", job)
        return capfd.readouterr().out.count("waiting") == 2

    until(waits)
    assert laptop.send("--detach", "train.py", "wait") == 0  # the same line again: no second job
    assert f"job {job} (execution 1) runs already" in capfd.readouterr().err
    assert laptop.send("train.py", "other") == 64
    assert "still runs, with another request" in capfd.readouterr().err
    assert laptop("stop", job) == 0
    assert laptop("logs", "-f", job) == 74
    assert capfd.readouterr().err.splitlines()[-1].endswith("was stopped: exit 74, kind=stopped source=client")
    assert laptop("fetch", "--what", "state", job) == 0
    saved = sorted((laptop.elsewhere / job / "state").rglob("saved-*"))
    assert [each.name for each in saved] == ["saved-0", "saved-1"]


@pytest.mark.slow(but=["local"])
def test_a_job_that_does_not_exist_says_where_it_was_looked_for(laptop, capfd):
    assert laptop("status", "nobody/nothing") == 64
    assert "looked in s3://" in capfd.readouterr().err


# `make test` kills one client while it uploads, before it creates its job, and right after that.
@pytest.mark.slow
@pytest.mark.parametrize("laptop", ["local"], indirect=True)
def test_a_client_that_is_killed_again_and_again_makes_one_job(laptop, capfd):
    """Every moment: tests/client/submit/place/test_send.py. Here a real process dies wherever it is."""
    argv = [sys.executable, "-m", "algorun", *laptop.submit, "train.py", "wait"]
    for seconds in (0.2, 0.35, 0.5, 0.65, 0.8):
        process = subprocess.Popen(argv, env=laptop.environ, cwd=laptop.code, stdout=subprocess.DEVNULL)
        time.sleep(seconds)
        process.kill()
        process.wait()
    assert laptop.send("--detach", "train.py", "wait") == 0
    job = job_in(capfd.readouterr().err)
    assert laptop("ls", "--json") == 0
    assert [json.loads(line)["job"] for line in capfd.readouterr().out.splitlines()] == [job, ""]
    for folder, name in ((laptop.code, "train"), (laptop.elsewhere, "images/train"), (laptop.elsewhere, job)):
        assert laptop("status", "--json", name, folder=folder) == 0
        assert json.loads(capfd.readouterr().out.splitlines()[0])["job"] == job
    assert laptop("stop", job) == 0
    assert laptop("logs", "-f", job) == 74


# `make test` reads them by boto3: test_server.py.
@pytest.mark.slow
@ON_THE_SERVER
def test_numbered_lines_over_60_streams_late_and_out_of_order(laptop, of_server, monkeypatch, capfd):
    patient = replace(QUICK, grace_s=2.0)  # as on AWS, longer than lines are late
    monkeypatch.setattr(connection, "PollTimes", lambda **_: patient)
    of_server.faults(streams=30, late_s=1.0)
    assert laptop.send("train.py", "count") == 0
    found = re.findall(r"^\[\d (algo-\d)\] \1 line (\d+)$", capfd.readouterr().out, re.MULTILINE)
    assert sorted(found) == [(f"algo-{host}", f"{n:04d}") for host in (1, 2) for n in range(1, 601)]


# `make test` has lost answers in one process: submit/place.
@pytest.mark.slow
@ON_THE_SERVER
def test_quota_capacity_and_a_lost_answer(laptop, of_server, capfd):
    of_server.faults(quota=True)
    assert laptop.send("train.py", "go") == 72
    assert capfd.readouterr().err.splitlines()[-1] == "algorun: exit 72, kind=quota source=client"
    of_server.faults(quota=False, lose_answers=1)
    assert laptop.send("--detach", "train.py", "go") == 0  # the same execution goes on; created once
    assert "(execution 1) is created" in capfd.readouterr().err
    of_server.faults(capacity=True)
    assert laptop.send("--task", "other", "train.py", "go") == 73
    assert capfd.readouterr().err.splitlines()[-1].endswith("exit 73, kind=capacity source=client")


def followed(laptop: Laptop, server: ServerProcess, job: str) -> subprocess.Popen[str]:
    """`algorun logs -f JOB` in a process of its own that has printed its first line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "algorun", "logs", "-f", job],
        env={**laptop.environ, **server.environ()},
        cwd=laptop.elsewhere,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


@pytest.mark.slow
@ON_THE_SERVER
def test_throttling_is_ridden_out_and_an_expired_token_ends_with_the_way_back(laptop, of_server, capfd):
    of_server.faults(throttle_s=1)
    assert laptop.send("--detach", "train.py", "wait") == 0
    job = job_in(capfd.readouterr().err)
    of_server.faults(throttle_s=0.0, expired=True)
    assert laptop("logs", "-f", job) == 71  # nothing was known of the job yet
    of_server.faults(expired=False)
    process = followed(laptop, of_server, job)
    of_server.faults(expired=True)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 75
    assert said.splitlines()[-2] == f"algorun: come back with: algorun logs -f {job} --region {REGION}"
    assert said.splitlines()[-1].endswith("it runs on: exit 75, kind=contact_lost source=client")
    of_server.faults(expired=False)
    process = followed(laptop, of_server, job)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "runs on without this command: exit 130, kind=detached source=client" in said
    assert laptop("stop", job) == 0
