"""The list of jobs."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from algorun_client.commands import ls
from algorun_client.commands.main import main
from tests.conftest import clean_environ

T0 = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def asked(monkeypatch) -> list[dict[str, Any]]:
    """Three training jobs on two pages; the queries are kept."""
    queries: list[dict[str, Any]] = []

    def page(**query: Any) -> dict[str, Any]:
        queries.append(query)
        number = int(query.get("NextToken", 0))
        summary = {
            "TrainingJobName": f"job-{number}",
            "TrainingJobStatus": "Completed",
            "CreationTime": T0,
            "TrainingEndTime": T0,
        }
        return {"TrainingJobSummaries": [summary], **({"NextToken": str(number + 1)} if number < 2 else {})}

    api = SimpleNamespace(list_training_jobs=page, list_processing_jobs=lambda **query: {})
    monkeypatch.setattr(
        ls, "connect", lambda *_, **__: SimpleNamespace(target=SimpleNamespace(sagemaker=api), session=None)
    )
    return queries


def test_a_project_and_task_are_looked_for_as_job_names_have_them(asked):
    """SageMaker refuses any other character in NameContains."""
    assert main(["ls", "my_images/train.v2"], {}) == 0
    assert [query["NameContains"] for query in asked] == ["my-images-train-v2"] * 3


def test_pages_are_read_to_the_wanted_number(asked, capsys):
    assert main(["ls", "--max", "2", "--json"], {}) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["event"], each["job"]) for each in found] == [("job", "job-0"), ("job", "job-1"), ("end", "")]
    assert found[0] == {
        "event": "job",
        "job": "job-0",
        "kind": "training",
        "status": "Completed",
        "created": T0.timestamp(),
        "ended": T0.timestamp(),
    }
    assert len(asked) == 2


@pytest.fixture
def nobody(tmp_path, monkeypatch) -> dict[str, str]:
    """A user without an account. Returns the variables."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    return clean_environ(ALGORUN_LOCAL_ROOT=str(tmp_path / "root"))


def test_without_credentials_the_jobs_of_this_machine_are_listed(nobody, tmp_path, capsys):
    (tmp_path / "root" / "jobs" / "training").mkdir(parents=True)
    assert main(["ls"], nobody) == 0
    said = capsys.readouterr()
    assert said.out == "no jobs\n"
    assert (
        said.err == "algorun: jobs of this machine (--where local). AWS is not asked: AWS: no credentials are found\n"
    )


@pytest.mark.parametrize("words", [["ls"], ["ls", "--json"], ["status", "train"], ["logs", "train"]])
def test_without_credentials_and_jobs_the_error_names_this_machine(nobody, tmp_path, capsys, words):
    if "--json" in words:  # a program has to say which jobs it means
        (tmp_path / "root" / "jobs").mkdir(parents=True)
    assert main(words, nobody) == 71
    said = capsys.readouterr()
    assert "no credentials are found" in said.out + said.err
    assert "; or --where local for jobs on this machine" in said.out + said.err


def test_whoever_asks_for_jobs_on_aws_gets_no_others(nobody, tmp_path, capsys):
    (tmp_path / "root" / "jobs" / "training").mkdir(parents=True)
    assert main(["ls", "--where", "aws"], nobody) == 71
    assert "--where local" not in capsys.readouterr().err
