"""The list of jobs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from algorun_client.commands import ls
from algorun_client.commands.main import main

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
