"""What the page says the hosts are."""

from __future__ import annotations

import json

import pytest

from algorun_report.folder.read import read_report
from algorun_report.page.render import render
from tests.report.job_folders import job_json


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, "2 x ml.g5.12xlarge"),
        ({"host_kind": "instances"}, "2 x ml.g5.12xlarge"),
        ({"host_kind": "simulated hosts", "instance": "", "paid": False}, "1 (simulated hosts of one machine)"),
        ({"host_kind": "<b>", "instance": "", "paid": False}, "1 (&lt;b&gt; of one machine)"),
    ],
)
def test_a_job_of_the_user_s_machine_has_no_instances(tmp_path, changes, shown):
    (tmp_path / "job.json").write_text(json.dumps(job_json(**changes)))
    request = {"create": {"ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2}}}
    (tmp_path / "request.json").write_text(json.dumps(request))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "algo-1.log").write_text("train_loss: 1.5\ntrain_loss: 1.4\n")
    page = render(read_report(tmp_path))
    assert f"<div><dt>hosts</dt><dd>{shown}</dd></div>" in page
    assert "ml.m5.large" not in page
    assert ("<dt>billable" in page.lower()) == (changes.get("paid", True))
