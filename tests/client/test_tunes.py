"""Tunings by the commands, with jobs of this machine: a chain around one, early stops, failures, and a client that is killed."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from pathlib import Path

import boto3
import pytest

from algorun_client import connection
from algorun_client.commands.main import main
from algorun_client.connection import PollTimes
from algorun_client.submit.chain import tune_study
from tests.client.killed_commands import Command
from tests.client.places import go_to, server_with_bucket
from tests.conftest import ROOT, clean_environ

pytest.importorskip("optuna")
QUICK = PollTimes(poll_s=0.05, stream_s=0.0, state_s=0.1, streams_s=0.2, sweep_s=1.0, grace_s=0.1, silence_s=10.0)
FILE = """
project = "tuned"
image = "algorun:test"
role = "arn:aws:iam::123456789012:role/Job"
instance = "ml.m5.large"
slots = 1
[task.train]
run = ["train.sh", "--lr", "1"]
metrics = { loss = "loss ([0-9.]+)", silent = "never ([0-9]+)" }
[task.train.tune]
goal = "min:loss"
points = 3
parallel = 2
space = { lr = { from = 1e-5, to = 0.1, log = true } }
"""
EVAL = """
[task.eval]
shell = 'echo "eval $(cat $SM_CHANNEL_MODEL/model) is {task:train/loss}"'
in.model = { from = "task:train/model", extract = true }
"""
# A valley whose lowest place is lr = 10**-2.5.
PROGRAM = """
awk -v lr=$2 'BEGIN { d = log(lr) / log(10) + 2.5; printf "loss %.6f\\n", d * d }'
echo "lr $2" > $SM_MODEL_DIR/model
"""


class Laptop:
    """A folder with a tuned task. Its jobs run on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder.parent / "root"
        self.environ = clean_environ(ALGORUN_LOCAL_ROOT=str(self.root))
        self.write(FILE)

    def write(self, text: str, program: str = PROGRAM) -> None:
        (self.folder / "algorun.toml").write_text(text)
        (self.folder / "train.sh").write_text(f"#!/bin/sh\n{program}")

    def __call__(self, *words: str) -> int:
        return main([words[0], "--where", "local", *words[1:]], self.environ)

    def command(self, *words: str) -> Command:
        """The same in a process of its own."""
        path = self.folder.parent / "said"
        path.touch()
        return Command([words[0], "--where", "local", *words[1:]], self.environ, self.folder, path)

    def executions(self) -> dict[str, int]:
        """How many executions each task has."""
        claims = (self.root / "s3" / "local" / "tuned").glob("*/jobs/*/request.json")
        return dict(Counter(path.parts[-4] for path in claims))

    def kept(self, what: str, tuning: int = 1) -> list[dict[str, object]]:
        """The points, or their ends, in the order in which they were chosen."""
        folder = self.root / "s3" / "local" / "tuned" / "train" / "tune" / f"{tuning:04d}" / what
        return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


@pytest.fixture
def laptop(tmp_path, monkeypatch):
    folder = tmp_path / "laptop"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(connection, "LOCAL", QUICK)
    return Laptop(folder)


def events(text: str, event: str) -> list[dict[str, object]]:
    return [each for each in map(json.loads, text.splitlines()) if each["event"] == event]


def test_a_chain_reads_the_best_point_and_the_same_line_is_done(laptop, capfd):
    laptop.write(FILE + EVAL)
    assert laptop("submit", "--all", "--json") == 0
    said = capfd.readouterr().out
    values = [each["value"] for each in events(said, "point")]
    assert len(values) == 3
    assert values == sorted(values)  # the best one first
    assert next(each["text"] for each in events(said, "task") if each["task"] == "train" and each["text"]) == (
        "3 completed of 3 points"
    )
    assert laptop.executions() == {
        **{f"train.lr-{point['parameters']['lr']}": 1 for point in laptop.kept("points")}, "eval": 1,
    }  # fmt: skip
    best = events(said, "point")[0]
    assert laptop("logs", "eval") == 0
    assert re.search(rf"eval lr {best['parameters']['lr']} is {best['value']:.6f}$", capfd.readouterr().out, re.M)

    before = laptop.executions()
    assert laptop("submit", "--all") == 0
    assert "train: goes on with 3 points, 3 of them ended" in capfd.readouterr().err
    assert laptop.executions() == before
    assert laptop("status", "train") == 0
    assert capfd.readouterr().out.startswith("tuning train: 3 points; 3 Completed\n")
    assert laptop("fetch", "--best", "min:loss", "--what", "model", "--to", "../home", "train") == 0
    assert Path("../home/model/model").read_text() == f"lr {best['parameters']['lr']}\n"
    assert laptop("logs", "train") == 64
    assert "name a point, such as `train.lr-" in capfd.readouterr().err


@pytest.mark.slow
def test_a_tuning_by_boto3_chooses_its_points_and_goes_on_with_them(tmp_path, monkeypatch, capfd):
    """Against a server that boto3 takes for AWS: states, lines and ends of jobs come by its calls."""
    folder = tmp_path / "laptop"
    folder.mkdir()
    with server_with_bucket(tmp_path / "server", "--stop-grace-s", "20") as server:
        environ, _ = go_to(monkeypatch, folder, QUICK, tmp_path / "root", server)
        (folder / "algorun.toml").write_text(FILE)
        (folder / "train.sh").write_text(f"#!/bin/sh\n{PROGRAM}")
        assert main(["submit", "--task", "train", "--json"], environ) == 0
        points = events(capfd.readouterr().out, "point")
        assert len(points) == 3
        values = [each["value"] for each in points]
        assert values == sorted(values)
        assert main(["results", "train", "--json"], environ) == 0
        assert [each["value"] for each in events(capfd.readouterr().out, "point")] == values
        assert main(["submit", "--task", "train"], environ) == 0
        assert "train: goes on with 3 points, 3 of them ended" in capfd.readouterr().err
        jobs = boto3.client("sagemaker").list_training_jobs()["TrainingJobSummaries"]
        assert len(jobs) == 3


def test_what_is_wrong_is_one_error_before_anything_is_created(laptop, capfd):
    for text, error in (
        (FILE.replace("min:loss", "min:los"), r"tune\] goal: task 'train' has no metric 'los'; .*did you mean 'loss'"),
        (FILE.replace("{ lr =", "{ rl ="), "'rl' is no parameter of task 'train'"),
        (
            FILE + EVAL.replace("/model", "/state"),
            "task 'train' is tuned, and each of its points has a state of its own",
        ),
        (FILE.replace("train.sh", "trian.sh"), "task 'train', PROGRAM: 'trian.sh' is not among"),
    ):
        laptop.write(text)
        assert laptop("submit", "--all") == 64
        (line,) = capfd.readouterr().err.splitlines()
        assert re.search(error, line), line
    laptop.write(FILE)
    assert laptop("submit", "--detach", "--task", "train") == 64
    assert not laptop.root.exists()


@pytest.mark.slow
def test_a_dry_run_shows_the_next_point_and_says_what_nobody_knows_yet(laptop, capfd):
    assert laptop("submit", "--task", "train", "--dry-run", "--json") == 0
    said = capfd.readouterr()
    assert "train: 0 of 3 points are chosen; the next one is shown, and 2 more follow from results" in said.err
    (shown,) = map(json.loads, said.out.splitlines())
    assert not laptop.root.exists()
    laptop.write(FILE.replace("points = 3", "points = 1"))
    assert laptop("submit", "--task", "train") == 0
    assert laptop.executions() == {shown["task"]: 1}  # what was shown is what is chosen
    assert laptop("submit", "--task", "train", "--dry-run", "--json") == 0
    assert "done already by" in capfd.readouterr().err


@pytest.mark.slow
def test_failed_points_end_the_tuning_and_a_corrected_program_begins_it_anew(laptop, capfd):
    laptop.write(FILE.replace("points = 3", "points = 20"), "exit 3\n")
    assert laptop("submit", "--task", "train") == 3
    said = capfd.readouterr().err
    assert re.search("train: failed: its first [34] points have all failed, and no other is chosen", said), said
    assert sum(laptop.executions().values()) in (3, 4)  # two at a time: the fourth may have begun
    assert laptop("submit", "--task", "train") == 3  # nothing has changed
    assert sum(laptop.executions().values()) in (3, 4)
    capfd.readouterr()
    laptop.write(FILE)
    assert laptop("submit", "--task", "train") == 0
    assert "train: tunes anew, because of what has changed: code: train.sh has changed" in capfd.readouterr().err
    assert len(laptop.kept("points", 2)) == 3


@pytest.mark.slow
def test_a_failed_point_is_told_and_the_tuning_goes_on(laptop, capfd):
    """Every second job fails, of five."""
    program = (
        f"mkdir {laptop.folder.parent}/odd 2>/dev/null || {{ rmdir {laptop.folder.parent}/odd; exit 4; }}\n{PROGRAM}"
    )
    laptop.write(FILE.replace("points = 3", "points = 5").replace("parallel = 2", "parallel = 1"), program)
    assert laptop("submit", "--task", "train") == 0
    said = capfd.readouterr().err
    failed = [f"train.lr-{laptop.kept('points')[n]['parameters']['lr']}" for n in (1, 3)]
    assert f"train: completed: 3 completed, 2 failed of 5 points; failed: {', '.join(failed)}" in said
    assert said.splitlines()[-1] == (
        "algorun: 3 of 5 jobs completed; 2 points failed: exit 0, kind=completed source=job"
    )
    assert [end["ending"] for end in laptop.kept("ends")] == ["completed", "failed"] * 2 + ["completed"]


@pytest.mark.slow
def test_a_job_without_the_metric_ends_the_tuning_with_one_error(laptop, capfd):
    laptop.write(FILE.replace("min:loss", "min:silent").replace("parallel = 2\n", ""))
    assert laptop("submit", "--task", "train") == 64
    said = capfd.readouterr().err
    point = f"train.lr-{laptop.kept('points')[0]['parameters']['lr']}"
    assert re.search(
        rf"tune\] goal: job tuned-\S+ of point {re.escape(point)} has completed, and never printed a number for metric 'silent', whose "
        r"regular expression is 'never \(\[0-9\]\+\)'; allowed: metrics of the task: .*silent",
        said,
    ), said
    assert sum(laptop.executions().values()) == 1
    # With another expression the same line goes on: the job that has ended is read again.
    corrected = FILE.replace("min:loss", "min:silent").replace("never ([0-9]+)", "loss ([0-9.]+)")
    laptop.write(corrected)
    assert laptop("submit", "--task", "train") == 0
    assert set(laptop.executions().values()) == {1}
    assert len(laptop.executions()) == 3


@pytest.mark.slow
def test_another_table_is_refused_and_force_begins_anew(laptop, capfd):
    assert laptop("submit", "--task", "train") == 0
    capfd.readouterr()
    laptop.write(FILE.replace("1e-5", "1e-4"))
    assert laptop("submit", "--task", "train") == 64
    (line,) = capfd.readouterr().err.splitlines()
    assert "the tuning was begun with another table: space.lr was" in line
    assert '"from": 1e-05' in line
    assert "fix: take the change back to go on with it; --force begins a new tuning" in line
    assert laptop("submit", "--task", "train", "--force") == 0
    assert len(laptop.kept("points", 2)) == 3
    laptop.write(FILE.replace("1e-5", "1e-4").replace("points = 3", "points = 4"))  # more points: it goes on
    assert laptop("submit", "--task", "train") == 0
    assert len(laptop.kept("points", 2)) == 4


HYPERBAND = FILE.replace("points = 3", 'points = 4\nmethod = "hyperband"\nsteps = 9').replace("parallel = 2\n", "")
# The first job has the lowest loss, each later one a higher one. After its first value a job waits for the client.
WORSE = """
n=$(ls {0} | wc -l); touch {0}/$$
for step in 1 2 3 4 5 6 7 8 9; do echo "loss $n.$step"; [ $n = 0 ] || sleep 0.7; done
"""


@pytest.mark.slow
def test_hyperband_stops_jobs_that_lag_behind(laptop, capfd):
    begun = laptop.folder.parent / "begun"
    begun.mkdir()
    laptop.write(HYPERBAND, WORSE.format(begun))
    assert laptop("submit", "--task", "train") == 0
    said = capfd.readouterr()
    ends = laptop.kept("ends")
    assert ends[0]["ending"] == "completed"
    stopped = [n for n, end in enumerate(ends) if end["ending"] == "stopped early"]
    assert stopped, ends
    for n in stopped:
        assert re.fullmatch(rf"{n}\.\d", str(ends[n]["value"]))
        assert ends[n]["curve"][0] == [1, float(f"{n}.1")]
    assert f"1 of 4 jobs completed, {len(stopped)} stopped early" in said.err or len(stopped) < 3
    assert "Stopped early" in said.out
    assert "failed" not in said.err
    before = laptop.executions()
    assert laptop("submit", "--task", "train", "--json") == 0  # neither counted as failed nor run again
    assert laptop.executions() == before
    rows = {each["task"]: each["status"] for each in events(capfd.readouterr().out, "point")}
    assert Counter(rows.values())["Stopped early"] == len(stopped)


@pytest.mark.slow
def test_a_client_that_is_killed_five_times_loses_no_point_and_makes_none_twice(laptop):
    laptop.write(FILE.replace("points = 3", "points = 8"))
    rng, kills = random.Random(3), 0
    while kills < 5:
        client = laptop.command("submit", "--task", "train")
        client.wait(rng.uniform(0.3, 2.0))
        if not client.runs:
            break
        client.kill()
        assert client.code() == -9
        kills += 1
    assert kills >= 3
    client = laptop.command("submit", "--task", "train")
    assert client.code() == 0, client.said.read_text()
    points = [f"train.lr-{point['parameters']['lr']}" for point in laptop.kept("points")]
    assert len(set(points)) == 8
    assert laptop.executions() == dict.fromkeys(points, 1)
    assert [end["ending"] for end in laptop.kept("ends")] == ["completed"] * 8


@pytest.mark.slow
def test_a_job_that_failed_while_nobody_looked_is_not_run_again(laptop):
    """Its client is killed while it runs; the next client finds that it has failed, and takes the next point."""
    laptop.write(
        FILE.replace("parallel = 2\n", ""), f"mkdir {laptop.folder.parent}/once && {{ sleep 1; exit 4; }}\n{PROGRAM}"
    )
    client = laptop.command("submit", "--task", "train")
    deadline = time.monotonic() + 60
    while not (laptop.folder.parent / "once").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    client.kill()
    time.sleep(2.5)
    assert laptop("submit", "--task", "train") == 0
    assert set(laptop.executions().values()) == {1}
    assert [end["ending"] for end in laptop.kept("ends")] == ["failed", "completed", "completed"]


def test_the_example_of_the_page_is_a_tuning(laptop, capfd):
    """docs/chains.md: a dry run of it shows a point inside of its space."""
    section = (ROOT / "docs" / "chains.md").read_text().partition("## Let results choose the values")[2]
    example = re.search(r"```toml\n(.*?)```", section, re.DOTALL)
    assert example is not None
    (laptop.folder / "main.py").write_text("")
    laptop.write(FILE[: FILE.index("[task.train]")] + example[1])
    assert laptop("submit", "--task", "train", "--dry-run", "--json") == 0
    said = capfd.readouterr()
    assert "train: 0 of 30 points are chosen; the next one is shown, and 29 more follow" in said.err
    shown = json.loads(said.out)["create"]["HyperParameters"]
    found = re.search(r'"--lr", "([^"]+)", "--batch-size", "(128|256|512)"', json.dumps(shown).replace("\\", ""))
    assert found is not None, shown
    assert 1e-5 <= float(found[1]) <= 0.1


def test_without_optuna_nothing_is_created(laptop, capfd, monkeypatch):
    monkeypatch.setattr(tune_study, "find_spec", lambda _: None)
    assert laptop("submit", "--task", "train") == 64
    (line,) = capfd.readouterr().err.splitlines()
    assert re.search(
        r"\[task.train.tune\]: optuna, which chooses the points, is not installed; fix: .*install.*optuna", line
    )
    assert not laptop.root.exists()
    assert laptop("results", "train") == 0  # reading needs no Optuna
