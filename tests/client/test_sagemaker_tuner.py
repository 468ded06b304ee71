"""`tuner = "sagemaker"`: the request, and whole tuning jobs whose training jobs really run, on a server that boto3 takes for AWS."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest

pytest.importorskip("moto.server", reason="moto[server] is not installed")

from algorun.common import REQUEST_FORMAT
from algorun_client.aws.tuning_jobs import TunedJob, TuningJobs
from algorun_client.commands.main import main
from algorun_client.common.errors import NotFound
from algorun_client.connection import PollTimes
from algorun_client.submit.history.tune_history import TuneHistory
from tests.client.places import BUCKET, go_to, server_with_bucket
from tests.sagemaker_server.server_process import ServerProcess

QUICK = PollTimes(poll_s=0.05, stream_s=0.0, state_s=0.2, streams_s=0.2, sweep_s=1.0, grace_s=0.1, silence_s=10.0)
FILE = """
project = "tuned"
image = "algorun:test"
role = "arn:aws:iam::123456789012:role/Job"
instance = "ml.m5.large"
price = { "ml.m5.large" = 1.0 }
max_run = "1h"
slots = 1
[task.train]
run = ["train.sh", "first", "--lr", "1", "--note={sweep:note}"]
metrics = { loss = "loss ([0-9.]+)" }
[task.train.tune]
tuner = "sagemaker"
goal = "min:loss"
points = 3
parallel = 2
space = { lr = { from = 1e-4, to = 0.1, log = true }, note = { values = ["a b", "c"] } }
"""
ONE_AT_A_TIME = {"parallel = 2": "parallel = 1"}  # each job costs a second of CPU
# A valley whose lowest place is lr = 10**-2.5, which is the middle one of three points.
PROGRAM = """#!/bin/sh
echo "got $# words: $1 $2 $3 [$4]"
awk -v lr=$3 'BEGIN { d = log(lr) / log(10) + 2.5; printf "loss %.6f\\n", d * d }'
echo "$3 $4" > $SM_MODEL_DIR/model
"""
Commands = Callable[..., int]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_with_bucket(tmp_path_factory.mktemp("server"), "--stop-grace-s", "5") as process:
        yield process


@pytest.fixture
def algorun(server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    folder = tmp_path / "code"
    folder.mkdir()
    environ, _ = go_to(monkeypatch, folder, QUICK, tmp_path / "root", server)
    write(project=tmp_path.name)
    return lambda *words: main(list(words), environ)


def write(changed: dict[str, str] | None = None, project: str = "tuned", program: str = PROGRAM) -> None:
    """The job file with changed parts, and the program, in the current folder. Each test has a project of its own."""
    text = FILE.replace('"tuned"', json.dumps(project[:30].strip("_-")))
    for old, new in (changed or {}).items():
        assert old in text
        text = text.replace(old, new)
    Path("algorun.toml").write_text(text)
    Path("train.sh").write_text(program)


def tuning_jobs() -> TuningJobs:
    return TuningJobs(boto3.client("sagemaker"))


def test_a_tuning_job_to_its_end_again_and_home(
    algorun: Commands, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert algorun("submit", "--task", "train") == 0
    out, err = capfd.readouterr()
    name = re.findall(r"created tuning job (\S+): 3 jobs, 2 at a time", err)[0]
    assert len(name) <= 32
    assert "Completed, 3 completed of 3 jobs" in err
    assert re.search(r"lowest loss: \S+ of ", out)

    jobs = tuning_jobs().jobs(name)
    assert [each.status for each in jobs] == ["Completed"] * 3
    assert algorun("results", "--json", "train") == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    points = [row for row in rows if row["event"] == "point"]
    assert [each["value"] for each in points] == sorted(each["value"] for each in points)
    assert points[0]["value"] < 0.01
    assert points[0]["parameters"]["lr"].startswith("0.003")

    # The words of the best job: its own values in their places, the others as they were written.
    assert algorun("fetch", "--best", "loss", "--to", str(tmp_path / "best"), "train") == 0
    kept = next((tmp_path / "best").rglob("model/model")).read_text()
    assert kept.strip() == f"{points[0]['parameters']['lr']} --note={points[0]['parameters']['note']}"
    said = "".join(path.read_text() for path in (tmp_path / "best").rglob("logs/*") if path.is_file())
    assert f"got 4 words: first --lr {points[0]['parameters']['lr']} [--note=" in said
    capfd.readouterr()

    # The same line: done. Nothing is created.
    assert algorun("submit", "--task", "train") == 0
    assert f"is done by tuning job {name}" in capfd.readouterr().err
    assert algorun("status", "train") == 0
    assert f"tuning job {name}: Completed, 3 completed of 3 jobs" in capfd.readouterr().out
    assert algorun("stop", "train") == 0
    assert "nothing to stop" in capfd.readouterr().out

    # Another program: another tuning job. Another table: an error.
    write(project=tmp_path.name, program=PROGRAM + "# changed\n")
    assert algorun("submit", "--detach", "--task", "train") == 0
    err = capfd.readouterr().err
    assert "tunes anew, because of what has changed: train.sh" in err.replace("code: ", "")
    second = re.findall(r"created tuning job (\S+):", err)[0]
    assert second != name
    write({"points = 3": "points = 4"}, project=tmp_path.name, program=PROGRAM + "# changed\n")
    assert algorun("submit", "--task", "train") == 64
    assert "points was 3, is 4" in capfd.readouterr().err


@pytest.mark.slow
def test_a_running_tuning_job_is_joined_and_stopped(
    algorun: Commands, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    slow = PROGRAM + "sleep 60\n"
    write(project=tmp_path.name, program=slow)
    assert algorun("submit", "--detach", "--task", "train") == 0
    name = re.findall(r"created tuning job (\S+):", capfd.readouterr().err)[0]
    assert algorun("submit", "--detach", "--task", "train") == 0
    assert f"joins tuning job {name}" in capfd.readouterr().err
    write(project=tmp_path.name, program=slow + "# changed\n")
    assert algorun("submit", "--detach", "--task", "train") == 64
    assert f"tuning job {name}: runs, and this has changed since" in capfd.readouterr().err
    assert algorun("submit", "--force", "--detach", "--task", "train") == 64
    assert f"--force: tuning job {name} runs; fix: `algorun stop train` first" in capfd.readouterr().err

    assert algorun("stop", "train") == 0
    assert "is asked to stop" in capfd.readouterr().out
    deadline = time.monotonic() + 60
    while tuning_jobs().describe(name).status != "Stopped":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert [each.status for each in tuning_jobs().jobs(name)] == ["Stopped", "Stopped"]
    assert algorun("logs", "train") == 64
    assert "is tuned by SageMaker, and its jobs are no tasks; fix: name one of the jobs" in capfd.readouterr().err
    write(project=tmp_path.name, program=PROGRAM)
    assert algorun("submit", "--task", "train") == 0  # none had completed: another one
    assert "no job of it has completed; another one follows" in capfd.readouterr().err


def test_jobs_that_fail_end_the_command_with_their_code(
    algorun: Commands, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write({"points = 3": "points = 2"}, project=tmp_path.name, program="#!/bin/sh\nexit 7\n")
    assert algorun("submit", "--json", "--task", "train") == 7
    end = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (end["event"], end["code"], end["kind"], end["source"]) == ("end", 7, "failed", "job")
    assert re.search(r"2 failed of 2 jobs; the first that failed, \S+: ", end["text"])


def test_a_client_that_dies_before_it_creates_the_tuning_job_makes_one(
    algorun: Commands, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What it has written is there, and no tuning job: the same line makes that one, and another client joins it."""
    write(ONE_AT_A_TIME, project=tmp_path.name)

    def die(self: TuningJobs, request: dict[str, object]) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TuningJobs, "create", die)
        assert algorun("submit", "--detach", "--task", "train") == 130
    assert "the same line joins it, and makes no second one" in capfd.readouterr().err
    assert algorun("submit", "--detach", "--task", "train") == 0
    name = re.findall(r"created tuning job (\S+):", capfd.readouterr().err)[0]
    assert "-0001-" in name

    def exists_by_now(self: TuningJobs, name: str) -> None:
        raise NotFound("ResourceNotFound", name)

    with monkeypatch.context() as patch:  # as if the other client's call came a moment later
        patch.setattr(TuningJobs, "describe", exists_by_now)
        assert algorun("submit", "--detach", "--task", "train") == 0
    assert f"joins tuning job {name}" in capfd.readouterr().err
    assert algorun("stop", "train") == 0


def test_a_goal_that_no_line_has_is_an_error_that_names_it(
    algorun: Commands, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write({"points = 3": "points = 1", "loss ([0-9.]+)": "Loss=([0-9.]+)"}, project=tmp_path.name)
    assert algorun("submit", "--task", "train") == 64
    said = capfd.readouterr().err
    assert (
        "SageMaker found no number for metric 'loss' in its lines, whose regular expression is 'Loss=([0-9.]+)'" in said
    )
    assert "--force begins another tuning job" in said


def test_the_tuning_job_of_a_removed_folder_is_not_joined(
    algorun: Commands, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """SageMaker takes a name once: after its folder was removed, another program would join the old tuning job."""
    write(ONE_AT_A_TIME, project=tmp_path.name)
    assert algorun("submit", "--detach", "--task", "train") == 0
    assert algorun("stop", "train") == 0
    s3 = boto3.client("s3")
    for key in tuning_keys(tmp_path.name):
        s3.delete_object(Bucket=BUCKET, Key=key)
    write(ONE_AT_A_TIME, project=tmp_path.name, program=PROGRAM + "# changed\n")
    capfd.readouterr()
    assert algorun("submit", "--detach", "--task", "train") == 0
    assert re.search(r"created tuning job train-0002-", capfd.readouterr().err)
    assert algorun("stop", "train") == 0


@pytest.mark.slow
def test_of_two_clients_with_other_code_one_gets_an_error(
    algorun: Commands, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert algorun("submit", "--detach", "--task", "train") == 0
    write(project=tmp_path.name, program=PROGRAM + "# changed\n")
    answers = [None]  # as if this client had looked before the other one began
    newest = TuneHistory.newest
    with monkeypatch.context() as patch:
        patch.setattr(TuneHistory, "newest", lambda self: answers.pop() if answers else newest(self))
        assert algorun("submit", "--detach", "--task", "train") == 64
    assert "another client has just begun it, with other things: " in capfd.readouterr().err
    assert algorun("stop", "train") == 0


@pytest.mark.slow
def test_the_tuner_of_a_task_changes(algorun: Commands, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Neither one leaves what the other has found, or its jobs that run, without a word."""
    pytest.importorskip("optuna", reason="optuna is not installed")
    by_algorun = {'tuner = "sagemaker"': 'tuner = "algorun"', "points = 3": "points = 1"}
    write(by_algorun, project=tmp_path.name)
    assert algorun("submit", "--task", "train") == 0
    write(project=tmp_path.name)
    capfd.readouterr()
    assert algorun("submit", "--detach", "--task", "train") == 64
    assert 'tuner was "absent", is "sagemaker"' in capfd.readouterr().err
    assert algorun("submit", "--force", "--detach", "--task", "train") == 0
    write(by_algorun, project=tmp_path.name)
    capfd.readouterr()
    assert algorun("submit", "--task", "train") == 64
    assert 'tuner was "sagemaker", is "absent"' in capfd.readouterr().err
    write(project=tmp_path.name)
    assert algorun("stop", "train") == 0


@pytest.mark.slow
def test_results_are_those_of_the_tuning_job(
    algorun: Commands, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its goal and its parameters, not those that the table has by now; and values in their order to the last digit."""
    assert algorun("submit", "--detach", "--task", "train") == 0
    values = {"a": 0.9277999997138977, "b": 1.0000009536743164, "c": 1.0000004768371582}

    def jobs(self: TuningJobs, name: str) -> list[TunedJob]:
        return [
            TunedJob(job=job, status="Completed", parameters={"lr": "1"}, value=each) for job, each in values.items()
        ]

    monkeypatch.setattr(TuningJobs, "jobs", jobs)
    changed = {
        LOSS: f'{LOSS[:-2]}, acc = "acc ([0-9.]+)" }}', 'goal = "min:loss"': 'goal = "max:acc"', ", note = {": ", bad = {",
        "sweep:note": "sweep:bad",
    }  # fmt: skip
    write(changed, project=tmp_path.name)
    capfd.readouterr()
    assert algorun("results", "--json", "train") == 0
    rows = [row for row in map(json.loads, capfd.readouterr().out.splitlines()) if row["event"] == "point"]
    assert [(row["job"], row["metric"], list(row["parameters"])) for row in rows] == [
        (job, "loss", ["lr", "note"]) for job in "acb"
    ]
    assert [row["value"] for row in rows] == [0.9278, 1.0000005, 1.000001]
    assert algorun("fetch", "--best", "acc", "train") == 64
    assert "the tuning's goal alone: lowest loss" in capfd.readouterr().err
    write(project=tmp_path.name)
    assert algorun("stop", "train") == 0


@pytest.mark.slow
def test_hyperband_ranks_jobs_that_it_has_stopped(
    algorun: Commands, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """SageMaker stops a job that has reached its last step, maybe before it ends by itself. The same line makes no second one."""
    write({"points = 3": 'points = 3\nmethod = "hyperband"\nsteps = 9'}, project=tmp_path.name)
    assert algorun("submit", "--task", "train") == 0
    monkeypatch.setattr(TuningJobs, "jobs", with_all(TuningJobs.jobs, status="Stopped"))
    monkeypatch.setattr(TuningJobs, "describe", with_all(TuningJobs.describe, completed=0, stopped=3))
    capfd.readouterr()
    assert algorun("submit", "--json", "--task", "train") == 0
    assert "is done by tuning job" in capfd.readouterr().out
    assert algorun("results", "train") == 0
    assert "lowest loss: 0 of train-0001-" in capfd.readouterr().out


HYPERPARAMETERS = {
    'run = ["train.sh", "first", "--lr", "1", "--note={sweep:note}"]': 'run = ["train.sh"]\nhyperparameters = { lr = 1, note = "x" }'
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "word", "values"),
    [
        ({}, "$4", ["a \"b\" 'c'", " $HOME `id`", "1e-05", "true", "[1, 2]", "", '"1.10"', "--x"]),
        (HYPERPARAMETERS, "$3=$4", ["a \"b\" 'c'", " $HOME `id`", "1e-05", "3.10", "12e4567", "", "null", "007"]),
    ],
    ids=["words", "hyperparameters"],
)
def test_values_get_to_the_program_as_they_are_written(
    changed: dict[str, str],
    word: str,
    values: list[str],
    algorun: Commands,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As with tuner = "algorun": no shell and no JSON reads them on the way."""
    write(
        {'["a b", "c"]': json.dumps(values), "points = 3": "points = 8", "parallel = 2": "parallel = 8", **changed},
        project=f"values-{len(changed)}", program=f'#!/bin/sh\necho "loss 1 [{word}]"\n',
    )  # fmt: skip
    assert algorun("submit", "--task", "train") == 0
    capfd.readouterr()
    assert algorun("results", "--json", "train") == 0
    rows = [row for row in map(json.loads, capfd.readouterr().out.splitlines()) if row["event"] == "point"]
    found = []
    for row in rows:
        assert algorun("logs", row["job"]) == 0
        found += re.findall(r"loss 1 \[--note=(.*)\]", capfd.readouterr().out)
    assert sorted(found) == sorted(values) == sorted(row["parameters"]["note"] for row in rows)


def with_all(call: Callable[..., Any], **changed: object) -> Callable[..., Any]:
    """A call whose answer, or each part of it, has other fields."""

    def answer(self: TuningJobs, name: str) -> Any:
        found = call(self, name)
        return [replace(each, **changed) for each in found] if isinstance(found, list) else replace(found, **changed)

    return answer


@pytest.mark.slow
def test_values_of_other_tasks_stand_in_the_words(
    algorun: Commands, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write({'"first"': '"{task:prep/loss}"'}, project=tmp_path.name)
    text = Path("algorun.toml").read_text()
    prep = "[task.prep]\nshell = 'echo loss 0.25'\nmetrics = { loss = 'loss ([0-9.]+)' }\n"
    Path("algorun.toml").write_text(text.replace("[task.train]", f"{prep}[task.train]"))
    assert algorun("submit", "--task", "prep") == 0
    capfd.readouterr()
    assert algorun("submit", "--dry-run", "--json", "--task", "train") == 0
    static = json.loads(capfd.readouterr().out)["create"]["TrainingJobDefinition"]["StaticHyperParameters"]
    assert json.loads(static["algorun_args"])[0] == "0.25"


def test_what_is_sent(algorun: Commands, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write({"points = 3": 'points = 30\nmethod = "hyperband"\nsteps = 27\nseed = 5'}, project=tmp_path.name)
    assert algorun("submit", "--dry-run", "--json", "--max-cost", "12.5", "--task", "train") == 0
    sent = json.loads(capfd.readouterr().out)["create"]
    config, definition = sent["HyperParameterTuningJobConfig"], sent["TrainingJobDefinition"]
    assert config == {
        "Strategy": "Hyperband",
        "StrategyConfig": {"HyperbandStrategyConfig": {"MinResource": 1, "MaxResource": 27}},
        "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "loss"},
        "ResourceLimits": {"MaxNumberOfTrainingJobs": 12, "MaxParallelTrainingJobs": 2},
        "ParameterRanges": {
            "ContinuousParameterRanges": [
                {"Name": "lr", "MinValue": "0.0001", "MaxValue": "0.1", "ScalingType": "Logarithmic"}
            ],
            "CategoricalParameterRanges": [{"Name": "note", "Values": ["a b", "c"]}],
        },
        "TrainingJobEarlyStoppingType": "Off",
        "RandomSeed": 5,
    }
    assert "CheckpointConfig" not in definition
    static = definition["StaticHyperParameters"]
    assert json.loads(static["algorun_args"]) == ["first", "--lr", "{tuned:lr}", "--note={tuned:note}"]
    assert json.loads(static["algorun_tuned"]) == ["lr", "note"]
    assert definition["Environment"]["ALGORUN_REQUEST_FORMAT"] == str(REQUEST_FORMAT)
    assert definition["OutputDataConfig"]["S3OutputPath"].startswith(f"s3://{BUCKET}/")
    assert definition["OutputDataConfig"]["S3OutputPath"].endswith("/train/tune/0001/output")


def test_hyperparameters_need_no_new_image(
    algorun: Commands, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = 'run = ["train.sh", "first", "--lr", "1", "--note={sweep:note}"]'
    write({words: 'run = ["train.sh"]\nhyperparameters = { lr = 1, note = "x", keep = 3 }'}, project=tmp_path.name)
    assert algorun("submit", "--dry-run", "--json", "--task", "train") == 0
    definition = json.loads(capfd.readouterr().out)["create"]["TrainingJobDefinition"]
    static = definition["StaticHyperParameters"]
    assert static["keep"] == "3"
    assert not {"lr", "note", "algorun_tuned", "algorun_args"} & static.keys()
    assert definition["Environment"]["ALGORUN_REQUEST_FORMAT"] == "1"


def listed(form: str, count: int) -> str:
    """A table of TOML."""
    return f"{{ {', '.join(form.format(at) for at in range(count))} }}"


MANY_WORDS = '"--lr", "1", ' + ", ".join(f'"--p{at}", "1"' for at in range(29))
MANY_VARIABLES = listed("V{} = '1'", 46)
MANY_PARAMETERS = listed("p{} = {{ from = 1, to = 2.5 }}", 29)[2:-2]
LOSS = 'metrics = { loss = "loss ([0-9.]+)" }'


@pytest.mark.parametrize(
    ("changed", "options", "said"),
    [
        ({LOSS: f"{LOSS}\nspot = true"}, (), "have no checkpoint folder in S3 of their own"),
        ({LOSS: f'{LOSS}\nkeep_alive = "5m"'}, (), "its jobs keep no hosts"),
        ({LOSS: f"{LOSS}\ntensorboard = true"}, (), "its jobs have no TensorBoard output"),
        ({}, ("--all",), "[task.train.tune] tuner: a chain waits for jobs that this command creates"),
        ({}, ("--queue", "1h"), "SageMaker's tuner waits for room by itself"),
        ({}, ("--clean-state",), "have no state in the bucket"),
        ({"points = 3": "points = 3\nfactor = 4"}, (), "factor: SageMaker's tuner has no such setting"),
        ({"points = 3": 'points = 3\nstop = "median"\nsteps = 9'}, (), "steps: SageMaker's tuner has no such setting"),
        ({"points = 3": "points = 4"}, ("--max-cost", "0.5"), "may cost 1.00"),
        ({'tuner = "sagemaker"': 'tuner = "sagmaker"'}, (), "did you mean 'sagemaker'?"),
        ({'goal = "min:loss"': 'goal = "min:los"'}, (), "did you mean 'loss'?"),
        ({"points = 3": "points = 300", "parallel = 2": "parallel = 101"}, (), "tune] parallel: 101 jobs at the same time"),
        ({"points = 3": 'points = 3\nmethod = "hyperband"\nsteps = 20001'}, (), "tune] steps: 20,001 steps"),
        ({'["a b", "c"]': str([f"v{at}" for at in range(31)])}, (), "space.note values: 31 values"),
        ({'["a b", "c"]': '["a\\nb", "c"]'}, (), "without an end of a line"),
        ({'["a b", "c"]': f'["{"x" * 257}", "c"]'}, (), "has 257 characters"),
        ({'["a b", "c"]': '["{tuned:lr}", "c"]'}, (), "holds {tuned:lr}, which stands for a value"),
        ({'"first"': '"{tuned:lr}"'}, (), "holds {tuned:lr}, which stands for a value"),
        ({'"--lr", "1"': MANY_WORDS, "note = {": f"{MANY_PARAMETERS}, note = {{"}, (), "space: 31 parameters"),
        ({LOSS: f"{LOSS}\nenv = {MANY_VARIABLES}"}, (), "--env: 49 variables"),
        ({LOSS: f"{LOSS}\nhyperparameters = {listed('h{} = 1', 93)}"}, (), "--hyperparameter: 100 with those"),
        ({LOSS: LOSS.replace("{ loss", listed("m{} = '([0-9]+)'", 20)[:-2] + ", loss")}, (), "--metric: 21 metrics"),
        (
            {'"first", "--lr", "1", "--note={sweep:note}"]': '"--lr", "1"]\nhyperparameters = { text = "n {sweep:note}" }'},
            (),
            "hyperparameter text: holds {sweep:note}, and SageMaker's tuner sets whole hyperparameters",
        ),
    ],
)  # fmt: skip
def test_bad_input_creates_nothing(
    algorun: Commands,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    changed: dict[str, str],
    options: tuple[str, ...],
    said: str,
) -> None:
    write(changed, project=tmp_path.name)
    words = ("train",) if "--all" in options else ("--task", "train")
    assert algorun("submit", *options, *words) == 64
    assert said in capfd.readouterr().err
    assert list(tuning_keys(tmp_path.name)) == []


def test_no_more_metrics_than_a_tuning_job_takes(
    algorun: Commands, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """SageMaker takes 20; the task's own come first, and that of the goal stays even if it is one of algorun's."""
    write({'goal = "min:loss"': 'goal = "min:train:epoch_perplexity"'}, project=tmp_path.name)
    assert algorun("submit", "--dry-run", "--json", "--task", "train") == 0
    definition = json.loads(capfd.readouterr().out)["create"]["TrainingJobDefinition"]
    sent = [each["Name"] for each in definition["AlgorithmSpecification"]["MetricDefinitions"]]
    assert len(sent) == 20
    assert {"loss", "train:epoch_perplexity"} < set(sent)


def test_max_cost_that_a_float_divides_badly(
    algorun: Commands, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write({'"ml.m5.large" = 1.0': '"ml.m5.large" = 0.1', "parallel = 2": "parallel = 500"}, project=tmp_path.name)
    assert algorun("submit", "--dry-run", "--json", "--max-cost", "0.3", "--task", "train") == 0
    sent = json.loads(capfd.readouterr().out)["create"]["HyperParameterTuningJobConfig"]
    assert sent["ResourceLimits"] == {"MaxNumberOfTrainingJobs": 3, "MaxParallelTrainingJobs": 3}


def tuning_keys(project: str) -> Iterator[str]:
    found = boto3.client("s3").list_objects_v2(Bucket=BUCKET, Prefix=f"{project[:30].strip('_-')}/")
    yield from (each["Key"] for each in found.get("Contents", ()))


def test_no_tuner_on_this_machine(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ, place = go_to(monkeypatch, tmp_path, QUICK, tmp_path / "root", None)
    write()
    assert main(["submit", *place, "--task", "train"], environ) == 64
    assert "SageMaker's tuner does not run on this machine; fix: tuner = 'algorun'" in capfd.readouterr().err


def test_another_task_cannot_read_it(algorun: Commands, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write(project=tmp_path.name)
    text = Path("algorun.toml").read_text()
    Path("algorun.toml").write_text(f"{text}[task.after]\nshell = 'ls'\nin.model = {{ from = 'task:train/model' }}\n")
    assert algorun("submit", "--task", "after") == 64
    assert "task 'train' is tuned by SageMaker, whose jobs no other task reads" in capfd.readouterr().err
