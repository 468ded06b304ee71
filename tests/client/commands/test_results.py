"""The results of a sweep: which job of a point counts, and which names are refused."""

from __future__ import annotations

import json

import pytest

from algorun.common.errors import UserError
from algorun_client.aws import api
from algorun_client.commands import find_job
from algorun_client.commands.main import main
from algorun_client.connection import LOCAL, PollTimes, Site
from algorun_client.follow import metric_values
from algorun_client.follow.log_reader import LogLine
from algorun_client.request.model import TaskAddress
from algorun_client.submit.chain import sweep_results
from algorun_client.submit.chain.sweep_results import SweptPoints
from algorun_client.submit.history.claims import claim_uri
from algorun_client.submit.read.sweep import Goal, TaskSweep
from tests.client.submit.look_up.test_upstreams import METRICS, reading
from tests.client.submit.look_up.test_upstreams import read as read_upstreams
from tests.client.submit.place.memory import World
from tests.client.submit.specs import spec
from tests.conftest import clean_environ

ADDRESS = TaskAddress(bucket="b", project="vision", task="train")
SWEEP = TaskSweep(where="w", points=tuple({"lr": n} for n in "123"))
FILE = """
[task.train]
run = ["train.py", "--lr", "1"]
metrics = { accuracy = "acc ([0-9.]+)" }
[task.train.sweep]
grid = { lr = [1, 2] }
best = "accuracy"
"""


class Executions(World):
    """Jobs with a status and a value each."""

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[str, tuple[str, str]] = {}

    def add(self, task: str, *executions: tuple[str, str]) -> None:
        """`executions`: status and value, the oldest first."""
        for number, each in enumerate(executions, 1):
            job = f"{task}-{number}"
            claim = {"kind": "training", "job": job, "create": {"Environment": {}}}
            address = TaskAddress(bucket="b", project="vision", task=task)
            self.objects[claim_uri(address, number)] = (json.dumps(claim).encode(), "")
            self.jobs[job] = {"TrainingJobName": job}
            self.states[job] = each

    def describe_training_job(self, TrainingJobName: str) -> dict[str, object]:
        return {"TrainingJobName": TrainingJobName, "TrainingJobStatus": self.states[TrainingJobName][0]}


@pytest.fixture
def world(monkeypatch):
    made = Executions()

    def lines(target: api.Target, state):
        yield [LogLine("algo-1", "algo-1-1", 1, f"acc {made.states[state.job][1]}")]

    monkeypatch.setattr(metric_values, "job_lines", lines)
    return made


def test_the_best_of_the_table_is_what_a_chain_reads(world):
    """A newer job that failed or runs does not hide the completed one, which feeds other tasks."""
    world.add("train.lr-1", ("Completed", "0.9"), ("Failed", "0.95"))
    world.add("train.lr-2", ("Failed", "0.8"), ("Completed", "0.5"))
    world.add("train.lr-3", ("Completed", "0.4"), ("InProgress", "0.99"))
    goal = Goal("accuracy", lowest=False)
    found = sweep_results.read_results(world.target, ADDRESS, SweptPoints(SWEEP), METRICS, goal, PollTimes(grace_s=0.0))
    assert [(row.job, row.status, row.newer, row.text) for row in found.rows] == [
        ("train.lr-1-1", "Completed", "Failed", "0.9"),
        ("train.lr-2-2", "Completed", "", "0.5"),
        ("train.lr-3-1", "Completed", "InProgress", "0.4"),
    ]
    upstreams, _ = read_upstreams(world, spec("a.py", **{"in": ["m=task:train/model"]}), reading(goal))
    assert upstreams["train"].job == sweep_results.best_of(found).job


def test_a_point_without_a_completed_job_shows_its_newest_one(world, capsys):
    world.add("train.lr-1", ("Stopped", "0.1"), ("Failed", "0.9"))
    world.add("train.lr-2", ("Completed", "0.2"), ("Failed", "0.3"))
    found = sweep_results.read_results(
        world.target, ADDRESS, SweptPoints(SWEEP), METRICS, Goal("accuracy", lowest=False), PollTimes(grace_s=0.0)
    )
    assert [(row.job, row.status) for row in found.rows] == [
        ("train.lr-2-1", "Completed"), ("train.lr-1-2", "Failed"), ("", "not submitted"),
    ]  # fmt: skip
    with pytest.raises(UserError, match="none of the 0 completed"):
        sweep_results.best_of(sweep_results.SweepResults(task="t", names=(), goal=found.goal, rows=found.rows[1:]))
    sweep_results.write(found, as_json=False)
    assert "Completed (newer: Failed)" in capsys.readouterr().out
    sweep_results.write(found, as_json=True)
    assert [json.loads(line)["newer"] for line in capsys.readouterr().out.splitlines()] == ["Failed", "", ""]


def test_a_piped_table_is_whole_however_wide_it_is(capsys):
    """A value that no column of a terminal holds, and a job's name of the greatest length."""
    row = sweep_results.Row(task="train.x-1", parameters=("v" * 190,), status="Completed", job="j" * 63, text="0.5")
    found = sweep_results.SweepResults(task="train", names=("job",), goal=Goal("accuracy", lowest=False), rows=(row,))
    sweep_results.write(found, as_json=False)
    assert capsys.readouterr().out.splitlines()[1].split() == ["v" * 190, "0.5", "Completed", "j" * 63]


@pytest.mark.parametrize("command", ["results", "logs", "fetch", "state"])
@pytest.mark.parametrize("name", ["../train", "a b/train", "/../train"])
def test_what_is_no_project_is_one_error(world, tmp_path, monkeypatch, capsys, command, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "algorun.toml").write_text(FILE)
    place = Site(target=world.target, following=lambda: world.target, session=None, pace=LOCAL, options="")
    monkeypatch.setattr(find_job, "connect", lambda *_, **__: place)
    words = [command, "ls"] if command == "state" else [command]
    environ = clean_environ(ALGORUN_LOCAL_ROOT=str(tmp_path / "root"))
    assert main([*words, "--where", "local", name], environ) == 64
    (said,) = capsys.readouterr().err.splitlines()
    assert "is not a name; allowed: letters" in said


@pytest.fixture
def folder(world, tmp_path, monkeypatch):
    """A folder with a job file of a sweep. Its jobs are those of `world`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "algorun.toml").write_text(f'project = "vision"\nbucket = "b"\n{FILE}')
    place = Site(
        target=world.target, following=lambda: world.target, session=None, pace=LOCAL, options=" --where local"
    )
    monkeypatch.setattr(find_job, "connect", lambda *_, **__: place)
    return tmp_path


def test_the_status_of_a_sweep_is_that_of_all_its_points(world, folder, capsys):
    world.add("train.lr-1", ("Completed", "0.9"))
    assert main(["status", "train"], {}) == 0
    first, *table, last = capsys.readouterr().out.splitlines()
    assert first == "sweep train: 2 points; 1 Completed, 1 not submitted"
    assert [line.split()[:2] for line in table] == [["lr", "status"], ["1", "Completed"], ["2", "not"]]
    assert last == "see one with: algorun status train.lr-1 --where local, or algorun logs train.lr-1 --where local"
    assert main(["status", "--json", "vision/train"], {}) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["event"], each.get("status")) for each in events] == [
        ("point", "Completed"), ("point", "not submitted"), ("end", None),
    ]  # fmt: skip


def test_a_sweep_of_which_nothing_is_sent_says_what_starts_it(folder, capsys):
    assert main(["status", "train"], {}) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "start them with: algorun submit train --where local"


@pytest.mark.parametrize("command", ["logs", "stop", "fetch"])
def test_a_command_for_one_job_names_the_points_of_a_sweep(folder, capsys, command):
    assert main([command, "train"], {}) == 64
    assert capsys.readouterr().err == (
        "algorun: error: train: is a sweep of 2 points, each a task of its own: train.lr-1, train.lr-2; fix: name a point, such "
        "as `train.lr-1 --where local`; `algorun status train --where local` shows all of them\n"
    )


def test_a_task_of_another_project_is_no_sweep_of_this_file(folder, capsys):
    assert main(["logs", "other/train"], {}) == 64
    assert "no job is found" in capsys.readouterr().err
