"""Chains and sweeps by the commands: on this machine, and through boto3 against the test server."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import pytest

from algorun_client.commands.main import main
from algorun_client.connection import PollTimes
from tests.client.killed_commands import Command
from tests.client.places import go_to, server_with_bucket

QUICK = PollTimes(poll_s=0.05, stream_s=0.0, state_s=0.1, streams_s=0.2, sweep_s=1.0, grace_s=0.3, silence_s=10.0)
HEAD = """
project = "chain"
image = "algorun:test"
role = "arn:aws:iam::123456789012:role/Job"
instance = "ml.m5.large"
slots = 1
[task.eval]
run = ["eval.py", "--than", "{task:train/accuracy}"]
in.model = { from = "task:train/model", extract = true }
[task.train]
run = ["train.py", "--lr", "1"]
in.train = "task:data/output/set"
metrics = { accuracy = "acc ([0-9.]+)", silent = "never ([0-9]+)" }
env = ["BROKEN"]
[task.data]
kind = "processing"
run = ["bash", "make.sh"]
code = "data-code"
"""
SWEEP = '[task.train.sweep]\ngrid = { lr = [1, 2] }\nparallel = 2\nbest = "accuracy"\n'
# top -> left and right -> bottom; `last` reads bottom and `alone`.
DIAMOND = (
    HEAD[: HEAD.index("[task.eval]")]
    + """
[task.last]
shell = 'echo x > "$SM_MODEL_DIR/x"'
in.b = "task:bottom/model"
in.a = "task:alone/model"
[task.bottom]
shell = 'echo x > "$SM_MODEL_DIR/x"'
in.l = "task:left/model"
in.r = "task:right/model"
[task.left]
shell = 'echo x > "$SM_MODEL_DIR/x"'
in.x = "task:top/model"
[task.right]
shell = 'echo x > "$SM_MODEL_DIR/x"'
in.x = "task:top/model"
[task.top]
shell = 'echo x > "$SM_MODEL_DIR/x"'
[task.alone]
shell = 'echo x > "$SM_MODEL_DIR/x"'
"""
)
FILES = {
    "data-code/make.sh": 'mkdir -p "$SSM_OUTPUT/set" && echo 42 > "$SSM_OUTPUT/set/answer"\n',
    "train.py": """
import os, sys
if os.environ.get("BROKEN") == "1":
    sys.exit(3)
lr = float(sys.argv[2])
assert open(os.environ["SM_CHANNEL_TRAIN"] + "/answer").read() == "42\\n"
print(f"acc {lr / 10}", flush=True)
open(os.environ["SM_MODEL_DIR"] + "/model", "w").write(f"lr {lr:g}")
""",
    "eval.py": """
import os, sys
print("eval", open(os.environ["SM_CHANNEL_MODEL"] + "/model").read(), "is", sys.argv[1:], flush=True)
""",
}


class Laptop:
    """A folder with three tasks, and a place where jobs run."""

    def __init__(self, folder: Path, environ: dict[str, str], place: tuple[str, ...], project: str = "chain") -> None:
        self.folder, self.environ, self.place, self.project = folder, environ, place, project
        for name, text in FILES.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)

    def file(self, text: str) -> None:
        (self.folder / "algorun.toml").write_text(text)

    def __call__(self, *words: str, **environ: str) -> int:
        return main([words[0], *self.place, *words[1:]], {"BROKEN": "0", **self.environ, **environ})

    def command(self, *words: str) -> Command:
        """The same in a process of its own."""
        path = self.folder.parent / "said"
        path.touch()
        environ = {**self.environ, **os.environ, "BROKEN": "0", "ALGORUN_FOLLOW_GRACE_S": "0.3"}
        return Command([words[0], *self.place, *words[1:]], environ, self.folder, path)

    def jobs(self) -> list[dict[str, object]]:
        """What the server says about all jobs of the project."""
        pages = boto3.client("sagemaker").get_paginator("list_training_jobs").paginate(NameContains=f"{self.project}-")
        return [job for page in pages for job in page["TrainingJobSummaries"]]


def most_at_once(jobs: list[dict[str, object]]) -> int:
    """The largest number of jobs that ran at the same moment; where one ends as another begins, that is one."""
    ends = [(job["TrainingEndTime"], -1) for job in jobs]
    return max(itertools.accumulate(step for _, step in sorted(ends + [(job["CreationTime"], 1) for job in jobs])))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with server_with_bucket(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture(params=["local", "server"])
def laptop(request, tmp_path, monkeypatch):
    folder = tmp_path / "laptop"
    folder.mkdir()
    server = request.getfixturevalue("server") if request.param == "server" else None
    environ, place = go_to(monkeypatch, folder, QUICK, tmp_path / "root", server)
    if server is None:
        yield Laptop(folder, environ, place)
        return
    project = re.sub(r"[^a-z]+", "-", request.node.originalname)[-40:].strip("-")
    yield Laptop(folder, environ, ("--project", project), project)
    server.faults()


ON_THIS_MACHINE = pytest.mark.parametrize("laptop", ["local"], indirect=True)
ON_THE_SERVER = pytest.mark.parametrize("laptop", ["server"], indirect=True)


def events(text: str, event: str) -> list[dict[str, object]]:
    return [each for each in map(json.loads, text.splitlines()) if each["event"] == event]


# Through boto3 `make test` keeps one whole way; requests, failures and stops: client/test_server.py.
@pytest.mark.slow(but=["local"])
def test_a_chain_from_a_failed_task_to_its_best_model(laptop, capfd):
    """train fails: eval is never created, and the rerun leaves out data alone."""
    laptop.file(HEAD + SWEEP)
    assert laptop("submit", "--all", "--json", BROKEN="1") == 3
    said = capfd.readouterr().out
    tasks = {each["task"]: each for each in events(said, "task")}  # the last event of each
    assert {task: each["status"] for task, each in tasks.items()} == {
        "data": "completed", "train.lr-1": "failed", "train.lr-2": "failed", "eval": "left out",
    }  # fmt: skip
    assert tasks["eval"]["text"] in ("train.lr-1 has failed", "train.lr-2 has failed")
    assert len(events(said, "sent")) == 3
    (end,) = events(said, "end")
    assert end["text"] == "1 of 4 jobs completed; train.lr-1 failed; left out: eval"
    assert (end["code"], end["kind"], end["source"]) == (3, "failed", "job")

    assert laptop("submit", "--all") == 0
    said = capfd.readouterr()
    sent = re.findall(r"job chain-(\S+)-\w{6} \(execution (\d)\) is created", said.err.replace(laptop.project, "chain"))
    assert sent == [("train-lr-1-0002", "2"), ("train-lr-2-0002", "2"), ("eval-0001", "1")]
    assert said.err.splitlines()[-1] == "algorun: 4 of 4 jobs completed: exit 0, kind=completed source=job"
    table = [line.split()[:3] for line in said.out.splitlines()]
    assert table[:3] == [["lr", "accuracy", "status"], ["2", "0.2", "Completed"], ["1", "0.1", "Completed"]]
    assert laptop("logs", "eval") == 0
    assert "eval lr 2 is ['--than', '0.2']" in capfd.readouterr().out

    assert laptop("submit", "--all", "--json") == 0  # nothing has changed: no job
    said = capfd.readouterr().out
    assert (len(events(said, "done")), events(said, "sent")) == (4, [])

    assert laptop("results", "train", "--by", "min:accuracy") == 0
    assert capfd.readouterr().out.splitlines()[-1] == "lowest accuracy: 0.1 of train.lr-1"
    assert laptop("fetch", "--best", "accuracy", "--what", "model", "--to", "../home", "train") == 0
    assert Path("../home/model/model").read_text() == "lr 2"
    assert laptop("fetch", "--best", "silent", "train") == 64
    assert "'silent' does not say which way is better" in capfd.readouterr().err
    assert laptop("fetch", "--best", "max:silent", "train") == 64
    assert "none of the 2 completed jobs of 'train' printed a number for it" in capfd.readouterr().err

    laptop.file(HEAD + SWEEP + '[task.look]\nrun = ["eval.py", "{task:train.lr-2/silent}"]\n')
    for words in (("--all", "look"), ("--task", "look")):
        assert laptop("submit", *words) == 64
        assert re.search(
            r"arguments of task 'look': job \S+ never printed a number for metric 'silent'; fix: look at",
            capfd.readouterr().err,
        )


@pytest.mark.parametrize(
    ("text", "words", "error"),
    [
        (HEAD.replace("[task.data]", '[task.data]\nin.x = "task:eval/output"'), (), r"tasks wait for each other: \w+ needs \w+ needs \w+ needs \w+; fix: remove one"),
        (HEAD.replace("task:data/", "task:dta/"), (), r"in.train: task 'dta' has no completed job; allowed: tasks of the job file: eval, train, data; fix: did you mean 'data'\?"),
        (HEAD + SWEEP.replace("lr =", "rl ="), (), "'rl' is no parameter of task 'train'"),
        (HEAD.replace("train/accuracy", "train/acuracy"), (), "task 'train' has no metric 'acuracy'.*did you mean 'accuracy'"),
        (HEAD + '[task.data]\nrun = ["a.py"]\n', (), "two tasks are called 'data' at line 19; fix: rename one"),
        (HEAD, ("trian",), r"--all: 'trian' is unknown; allowed: eval, train, data; fix: did you mean 'train'\?"),
        (HEAD.replace('"eval.py"', '"evil.py"'), (), "task 'eval', PROGRAM: 'evil.py' is not among the .* files of the code"),
        (HEAD.replace("[task.eval]", '[task.eval]\nhyperparameters = { h = "' + "x" * 2501 + '" }'), (), "task 'eval', --hyperparameter h: has 2501 characters"),
    ],
)  # fmt: skip
@ON_THIS_MACHINE
def test_bad_input_is_one_error_and_nothing_is_created(laptop, tmp_path, capfd, text, words, error):
    laptop.file(text)
    assert laptop("submit", "--all", *words) == 64
    said = capfd.readouterr().err
    assert re.search(error, said), said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "root").exists()


@ON_THIS_MACHINE
def test_options_of_one_task_are_refused(laptop, capfd):
    laptop.file(HEAD)
    for option in (("--task", "train"), ("--shell", "x"), ("--in", "a=b"), ("--detach",)):
        assert laptop("submit", *option, "--all") == 64
        assert f"algorun: error: {option[0]}: " in capfd.readouterr().err


@ON_THIS_MACHINE
def test_a_dry_run_shows_all_jobs_and_what_is_not_known_yet(laptop, tmp_path, capfd):
    laptop.file(HEAD + SWEEP)
    assert laptop("submit", "--all", "--dry-run", "--json") == 0
    shown = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [each["task"] for each in shown] == ["data", "train.lr-1", "train.lr-2", "eval"]
    assert "HyperParameters.algorun_args" in shown[-1]["unknown"]
    assert laptop("submit", "--task", "train", "--dry-run") == 64  # `data` has never run, and is not part of it
    assert "task 'data' has no completed job" in capfd.readouterr().err
    assert not (tmp_path / "root").exists()


@pytest.mark.slow
def test_a_dry_run_of_several_tasks_says_which_are_done_already(laptop, capfd):
    def done() -> list[tuple[str, str]]:
        """The tasks that the dry run calls done, and their jobs."""
        found = re.findall(
            r"algorun: (\S+): done already by (\S+) \(execution 1\): nothing has", capfd.readouterr().err
        )
        return [(task, re.sub(r"-\w{6}$", "", job.removeprefix(f"{laptop.project}-"))) for task, job in found]

    laptop.file(HEAD + SWEEP)
    assert laptop("submit", "--task", "data") == 0
    assert laptop("submit", "--all", "--dry-run") == 0
    assert done() == [("data", "data-0001")]
    assert laptop("submit", "--all", "--dry-run", "--force") == 0
    assert done() == []
    assert laptop("submit", "--task", "train", "--json") == 0
    assert laptop("submit", "--task", "train", "--dry-run", "--json") == 0
    assert done() == [("train.lr-1", "train-lr-1-0001"), ("train.lr-2", "train-lr-2-0001")]


# client/commands/test_chain_run.py does the same with jobs in memory.
@pytest.mark.slow
@ON_THE_SERVER
def test_a_sweep_above_the_quota_waits_and_a_killed_client_goes_on(laptop, server, capfd, tmp_path):
    """Four points, a quota of two instances: never three run. The client is killed after it has created two jobs, which last
    longer than the next client takes to begin."""
    grid = SWEEP.replace("[1, 2]", "[1, 2, 3, 4]").replace("parallel = 2\n", "")
    laptop.file(HEAD.replace('in.train = "task:data/output/set"\n', "") + grid)
    (laptop.folder / "train.py").write_text('import sys, time\ntime.sleep(3)\nprint("acc", sys.argv[2], flush=True)\n')
    server.faults(instances=2)
    client = laptop.command("submit", "--task", "train", "--json")
    while client.said.read_text().count('"sent"') < 2:
        time.sleep(0.05)
        assert client.runs, client.said.read_text()
    client.kill()
    assert client.code() == -9
    assert laptop("submit", "--task", "train", "--json") == 0
    said = capfd.readouterr().out
    assert {each["number"] for each in events(said, "sent")} == {1}
    assert [each["value"] for each in events(said, "point")] == [4, 3, 2, 1]
    assert any(each["status"] == "queued" for each in events(said, "task"))
    jobs = laptop.jobs()
    assert len(jobs) == 4
    assert most_at_once(jobs) == 2
    laptop.file(HEAD.replace('in.train = "task:data/output/set"\n', "") + grid.replace("4]", "4, 0.5]"))
    assert laptop("submit", "--task", "train", "--json") == 0  # a larger grid: its points that are done stay
    assert [each["number"] for each in events(capfd.readouterr().out, "sent")] == [1]
    assert len(laptop.jobs()) == 5


@pytest.mark.slow
@ON_THE_SERVER
def test_parallel_limits_the_jobs_of_a_sweep(laptop, capfd):
    laptop.file(HEAD.replace('in.train = "task:data/output/set"\n', "") + SWEEP.replace("[1, 2]", "[1, 2, 3, 4]"))
    (laptop.folder / "train.py").write_text('import sys\nprint("acc", sys.argv[2], flush=True)\n')
    assert laptop("submit", "--task", "train") == 0
    assert (len(laptop.jobs()), most_at_once(laptop.jobs())) == (4, 2)


@pytest.mark.slow
@ON_THE_SERVER
def test_two_clients_of_one_line_make_each_job_once(laptop):
    laptop.file(DIAMOND)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: laptop("submit", "--all"), range(2))) == [0, 0]
    assert len(laptop.jobs()) == 6


@pytest.mark.slow
@ON_THE_SERVER
def test_a_chain_whose_client_is_killed_again_and_again_makes_each_job_once(laptop):
    laptop.file(DIAMOND)
    rng = random.Random(16)
    for kills in range(12):
        client = laptop.command("submit", "--all")
        client.wait(rng.uniform(0.1, 2 + kills / 4))  # it starts for a second, and on a busy machine for longer
        if not client.runs:
            break
        client.kill()
        assert client.code() == -9
    assert kills >= 3
    assert laptop("submit", "--all") == 0
    assert sorted(re.findall(r"-(\w+)-0001-\w{6}$", job["TrainingJobName"])[0] for job in laptop.jobs()) == [
        "alone", "bottom", "last", "left", "right", "top",
    ]  # fmt: skip
