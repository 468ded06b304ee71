"""What status and ls say about interruptions and cost."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from algorun_client.commands import find_job, ls
from algorun_client.commands.main import main
from algorun_client.common.errors import NotFound
from algorun_client.connection import PollTimes, Site

T0 = datetime(2026, 1, 1, tzinfo=UTC)
JOB = "images-train-0001-abcdef"
PHASES = (("Starting", 60), ("Training", 600), ("Interrupted", 40), ("Starting", 30), ("Training", 900))


def described(**changes: Any) -> dict[str, Any]:
    """A spot job of three hosts that was interrupted once."""
    transitions, at = [], T0
    for name, seconds in PHASES:
        end = at + timedelta(seconds=seconds)
        transitions.append({"Status": name, "StartTime": at, "EndTime": end})
        at = end
    return {
        "TrainingJobName": JOB,
        "TrainingJobStatus": "Completed",
        "SecondaryStatus": "Completed",
        "CreationTime": T0,
        "TrainingEndTime": at,
        "BillableTimeInSeconds": 1200,
        "TrainingTimeInSeconds": 3000,
        "EnableManagedSpotTraining": True,
        "ResourceConfig": {"InstanceType": "ml.g5.12xlarge", "InstanceCount": 3},
        "SecondaryStatusTransitions": transitions,
        **changes,
    }


def not_found(**_: Any) -> None:
    raise NotFound("ValidationException", "Requested resource not found.", "DescribeTrainingJob")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a job file; `place.answer` is what SageMaker says."""
    found = SimpleNamespace(answer=described(), file=tmp_path / "algorun.toml")
    summary = {key: found.answer[key] for key in ("TrainingJobName", "TrainingJobStatus", "CreationTime")}
    api = SimpleNamespace(
        describe_training_job=lambda **_: found.answer,
        list_training_jobs=lambda **_: {"TrainingJobSummaries": [summary]},
        list_processing_jobs=lambda **_: {},
    )
    target, session = SimpleNamespace(sagemaker=api), SimpleNamespace(region="eu-west-1")
    connection = Site(target=target, following=lambda: target, session=session, pace=PollTimes(), options="")
    found.api, found.connection = api, connection
    for module in (find_job, ls):
        monkeypatch.setattr(module, "connect", lambda *_, **__: connection)
    monkeypatch.chdir(tmp_path)
    return found


def test_status_tells_interruptions_saving_and_cost(place, capsys):
    place.file.write_text('price = { "ml.g5.12xlarge" = 5.67, "ml.m5.large" = 0.1 }')
    assert main(["status", JOB], {}) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == "training on 3 x ml.g5.12xlarge, spot"
    console = "https://eu-west-1.console.aws.amazon.com"
    assert lines[-3].startswith(f"console: {console}/sagemaker/home?region=eu-west-1#/jobs/{JOB}")
    assert lines[-2].startswith(f"logs: {console}/cloudwatch/home?region=eu-west-1#logsV2:log-groups/log-group/")
    assert lines[-6:-3] == [
        "interrupted once",
        "billable 20 min 0 s on each host; spot instances saved 60 %",
        "cost 5.67 (3 hosts at 5.67 an hour)",
    ]
    assert main(["status", "--json", JOB], {}) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (told["spot"], told["interruptions"], told["retries"], told["saving"]) == (True, 1, 0, 0.6)
    assert told["cost"] == pytest.approx(5.67)


def test_without_a_price_it_is_unknown(place, capsys):
    assert main(["status", JOB], {}) == 0
    assert "price unknown: the job file's `price` has no ml.g5.12xlarge" in capsys.readouterr().out
    assert main(["status", "--json", JOB], {}) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["cost"] is None


def test_without_billable_time_nothing_is_said_about_cost(place, capsys):
    place.answer = described(TrainingJobStatus="Stopped", BillableTimeInSeconds=None, EnableManagedSpotTraining=False)
    assert main(["status", JOB], {}) == 0
    said = capsys.readouterr().out
    assert "cost" not in said
    assert "price" not in said
    assert "spot" not in said


def test_kept_hosts_and_instance_groups_are_counted(place, capsys):
    place.file.write_text('price = { "ml.g5.12xlarge" = 6.0, "ml.m5.large" = 0.6 }')
    groups = [
        {"InstanceGroupName": "gpu", "InstanceType": "ml.g5.12xlarge", "InstanceCount": 1},
        {"InstanceGroupName": "cpu", "InstanceType": "ml.m5.large", "InstanceCount": 2},
    ]
    place.answer = described(
        EnableManagedSpotTraining=False,
        ResourceConfig={"InstanceGroups": groups, "KeepAlivePeriodInSeconds": 1800},
        WarmPoolStatus={"Status": "Terminated", "ResourceRetainedBillableTimeInSeconds": 600},
    )
    assert main(["status", JOB], {}) == 0
    said = capsys.readouterr().out
    assert "training on 3 x ml.g5.12xlarge + ml.m5.large\n" in said
    assert "billable 30 min 0 s on each host, 10 min 0 s of it kept for the next job\n" in said
    assert "cost 3.60 (3 hosts at 2.4 an hour)" in said  # half of 6 + 2 x 0.6
    place.file.write_text('price = { "ml.g5.12xlarge" = 6.0 }')
    assert main(["status", JOB], {}) == 0
    assert "price unknown: the job file's `price` has no ml.m5.large\n" in capsys.readouterr().out
    place.file.write_text('price = { "ml.g5.12xlarge" = 6.0, "ml.m5.large" = 0.6 }')
    assert main(["status", "--json", JOB], {}) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["billable_s"] == 1800


def test_a_processing_job_is_paid_for_while_it_processes(place, capsys):
    place.file.write_text('price = { "ml.m5.large" = 0.6 }')
    place.api.describe_training_job = not_found
    place.api.describe_processing_job = lambda **_: {
        "ProcessingJobName": JOB,
        "ProcessingJobStatus": "Completed",
        "CreationTime": T0,
        "ProcessingStartTime": T0 + timedelta(seconds=90),
        "ProcessingEndTime": T0 + timedelta(seconds=690),
        "ProcessingResources": {"ClusterConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2}},
    }
    assert main(["status", JOB], {}) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[-5:-3] == ["billable 10 min 0 s on each host", "cost 0.20 (2 hosts at 0.6 an hour)"]


def test_this_machine_costs_nothing(place, capsys):
    object.__setattr__(place.connection, "session", None)
    assert main(["ls", "--cost"], {}) == 0
    assert main(["status", JOB], {}) == 0
    assert "price" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "count", "words"),
    [
        ("simulated hosts", 2, "2 simulated hosts of this machine"),
        ("simulated hosts", 1, "1 simulated host of this machine"),
        ("containers", 3, "3 containers of this machine"),
    ],
)
def test_a_job_of_this_machine_has_no_instances_and_nothing_billable(place, capsys, kind, count, words):
    object.__setattr__(place.connection, "session", None)
    place.answer |= {
        "AlgorunHosts": kind,
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": count},
        "BillableTimeInSeconds": 60,
    }
    assert main(["status", JOB], {}) == 0
    assert main(["ls", "--cost"], {}) == 0
    out = capsys.readouterr().out
    assert f"training on {words}" in out
    assert "ml.m5" not in out
    assert "billable" not in out
    assert main(["status", "--json", JOB], {}) == 0
    state = json.loads(capsys.readouterr().out.splitlines()[0])
    assert [state[key] for key in ("hosts", "host_kind", "instance", "billable_s")] == [count, kind, "", None]


def test_ls_has_the_cost_of_each_job_on_request(place, capsys):
    place.file.write_text('price = { "ml.g5.12xlarge" = 5.67 }')
    assert main(["ls", "--cost"], {}) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["job", "kind", "status", "created", "took", "interrupted", "billable", "saved", "cost"]
    assert " ".join(row.split()).endswith("1 3 x 20 min 0 s 60 % 5.67")
    assert main(["ls", "--cost", "--json"], {}) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (told["interruptions"], told["billable_s"], told["saving"]) == (1, 1200, 0.6)
    assert told["cost"] == pytest.approx(5.67)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("price = 5.67", "algorun.toml price: 5.67 is not a table; allowed: "),
        (
            'price = { "ml.g5.12xlarge" = "5" }',
            "algorun.toml price.ml.g5.12xlarge: '5' is not a price; allowed: a number",
        ),
        (
            'price = { "ml.g5.12xlarge" = -1 }',
            "algorun.toml price.ml.g5.12xlarge: -1 is not a price; allowed: a number",
        ),
        (
            'price = { "ml.g5.12xlarge" = inf }',
            "algorun.toml price.ml.g5.12xlarge: inf is not a price; allowed: a number",
        ),
        ("price = { g5 = 1 }", "algorun.toml price: 'g5' is not an instance type; allowed: "),
        ("price.ml.g5.12xlarge = 1", "algorun.toml price.ml: "),  # TOML reads dots as tables
        ("[task.train]\nprice = { }", "algorun.toml [task.train]: "),
    ],
)
def test_a_wrong_price_is_one_error(place, capsys, text, message):
    place.file.write_text(text)
    assert main(["status", JOB], {}) == 64
    assert capsys.readouterr().err.startswith(f"algorun: error: {message}")
