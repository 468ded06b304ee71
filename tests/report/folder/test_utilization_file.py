"""Figures of hosts and sweeps in a job's folder."""

from __future__ import annotations

import json

import pytest

from algorun.common.errors import UserError
from algorun_report.folder.read import read_report
from algorun_report.page.render import render
from tests.report.job_folders import BEGIN, job_json, write_job
from tests.report.page.pages import chart, data

METRICS = {
    "format": 1,
    "period_s": 60,
    "hosts": {"algo-1": {"cores": 4, "gpus": 2}, "algo-2": {"cores": 4, "gpus": None}, "algo-10": {"cores": 4}},
    "series": [
        {"metric": "CPUUtilization", "host": host, "times": [BEGIN + 60, BEGIN + 120], "values": [n * 100, n * 50]}
        for n, host in ((3, "algo-10"), (1, "algo-1"), (2, "algo-2"))
    ]
    + [{"metric": "GPUMemoryUtilization", "host": f"algo-{n}", "times": [BEGIN + 60], "values": [150]} for n in (1, 2)]
    + [{"metric": "SomethingNew", "host": "algo-1", "times": [BEGIN], "values": [1]}],
}
SWEEP = {
    "names": ["lr", "batch"],
    "metric": "accuracy",
    "rows": [
        {"job": "sweep-2", "status": "Completed", "parameters": ["0.1", "<script>"], "value": 0.875},
        {"job": "sweep-1", "status": "Failed", "parameters": ["0.01", "32"], "value": None},
    ],
}


@pytest.fixture
def folder(tmp_path):
    return write_job(tmp_path / "job", steps=5)


def test_the_page_has_the_hosts_in_percent_of_each(folder):
    (folder / "metrics.json").write_text(json.dumps(METRICS))
    report = read_report(folder)
    page = render(report)
    cpu, memory = chart(page, "CPU"), chart(page, "GPU memory")
    assert (cpu["labels"], cpu["percent"], cpu["x"]) == (["algo-1", "algo-2", "algo-10"], True, [60.0, 120.0])
    assert cpu["columns"] == [[25.0, 12.5], [50.0, 25.0], [75.0, 37.5]]
    assert (memory["labels"], memory["columns"]) == (["algo-1"], [[75.0]])
    assert "The number of GPUs of algo-2 is unknown, so figures of them are left out." in page
    assert "Hosts at work" in page
    assert "the folder holds none" not in page


def test_a_sweep_is_a_table_whose_values_are_text(folder):
    (folder / "sweep.json").write_text(json.dumps(SWEEP))
    page = render(read_report(folder))
    assert '<td>&lt;script&gt;</td><td class="number">0.875</td><td>Completed</td>' in page
    assert page.index("sweep-2") < page.index("sweep-1")
    (folder / "sweep.json").write_text(json.dumps({**SWEEP, "metric": ""}))
    assert "<td>&lt;script&gt;</td><td>Completed</td>" in render(read_report(folder))


@pytest.mark.parametrize(
    ("file", "value", "message"),
    [
        ("metrics.json", [], "holds list, not an object"),
        ("metrics.json", {}, "format is not 1: the file is damaged"),
        ("metrics.json", {**METRICS, "format": 2}, "format is not 1"),
        ("metrics.json", {**METRICS, "series": [{"times": [1, 2], "values": [1]}]}, "times and values do not belong"),
        (
            "metrics.json",
            {**METRICS, "series": [{"times": [2, 1], "values": [1, 1]}]},
            "times and values do not belong",
        ),
        ("metrics.json", {**METRICS, "series": [{"times": ["1"], "values": [1]}]}, "times is not a list of numbers"),
        ("metrics.json", {**METRICS, "hosts": {"algo-1": {"cores": "4"}}}, "hosts.algo-1.cores is not a number"),
        ("sweep.json", {**SWEEP, "names": ["lr"]}, "parameters has 2 values for 1 names"),
        ("sweep.json", {**SWEEP, "names": "lr"}, "names is not a list of strings"),
        ("job.json", job_json(spot="yes"), "spot is not true or false"),
    ],
)
def test_a_damaged_file_is_one_error(folder, file, value, message):
    (folder / file).write_text(json.dumps(value))
    with pytest.raises(UserError) as caught:
        read_report(folder)
    assert str(folder / file) in str(caught.value)
    assert message in str(caught.value)
    assert "fix: fetch the job again" in str(caught.value)


def test_interruptions_saving_and_price_of_the_job(folder):
    job = job_json(spot=True, rate=5.0, retries=2)
    phases = job["phases"]
    assert isinstance(phases, list)
    phases.insert(3, {"name": "Interrupted", "begin": BEGIN + 200, "end": BEGIN + 260})
    (folder / "job.json").write_text(json.dumps(job))
    report = read_report(folder)
    assert (report.interruptions, report.cost.rate) == (1, 5.0)
    page = render(report)
    assert "<dt>spot interruptions</dt><dd>1</dd>" in page
    assert "<dt>started again by SageMaker</dt><dd>2</dd>" in page
    assert "saved by spot instances" in page
    assert {"x": 200.0, "text": "interrupted"} in data(page)["marks"]
    assert read_report(folder, rate=2.0).cost.rate == 2.0


def test_a_job_that_costs_nothing_has_no_price(folder):
    (folder / "job.json").write_text(json.dumps(job_json(paid=False)))
    report = read_report(folder)
    assert report.cost is None
    assert "price" not in render(report)


def test_a_job_on_other_instances_has_saved_nothing(folder):
    (folder / "job.json").write_text(json.dumps(job_json(spot=False)))
    assert read_report(folder).cost.saving is None
