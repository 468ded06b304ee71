"""`algorun report JOB`: what is fetched, what is not fetched again, and when a word is a folder."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from algorun import cli
from algorun_client.commands import find_job, report
from algorun_client.common.errors import ApiError
from algorun_client.connection import PollTimes, Site
from algorun_client.local.folder_store import FolderStore
from algorun_client.submit.chain.sweep_results import Row, SweepResults
from algorun_client.submit.read.sweep import Goal
from tests.report.job_folders import write_job
from tests.report.page.pages import chart, data

JOB = "images-train-0001-abcdef"
MINUTE = 60


class Cloud:
    """A job that ended `age_s` ago, with lines and figures; counts what is asked for."""

    def __init__(self, root, age_s: float) -> None:
        self.begin = (time.time() - age_s - 10 * MINUTE) // 60 * 60
        self.asked: list[str] = []
        self.store = FolderStore(root)
        self.status = "Completed"
        self.words = "loss"  # before each number
        self.figures = True

    def _at(self, minutes: float) -> datetime:
        return datetime.fromtimestamp(self.begin + minutes * MINUTE, UTC)

    def describe_training_job(self, **_: Any) -> dict[str, Any]:
        return {
            "TrainingJobName": JOB,
            "TrainingJobStatus": self.status,
            "CreationTime": self._at(0),
            "TrainingEndTime": self._at(10),
            "BillableTimeInSeconds": 360,
            "ResourceConfig": {"InstanceType": "ml.g5.12xlarge", "InstanceCount": 1},
            "OutputDataConfig": {"S3OutputPath": "s3://local/out"},
            "SecondaryStatusTransitions": [{"Status": "Training", "StartTime": self._at(0), "EndTime": self._at(10)}],
            "AlgorithmSpecification": {"MetricDefinitions": [{"Name": "loss", "Regex": "loss ([0-9.]+)"}]},
        }

    def describe_log_streams(self, **_: Any) -> dict[str, Any]:
        return {"logStreams": [{"logStreamName": f"{JOB}/algo-1-{int(self.begin)}"}]}

    def get_log_events(self, **query: Any) -> dict[str, Any]:
        self.asked.append("lines")
        if query.get("nextToken"):
            return {"events": [], "nextForwardToken": query["nextToken"]}
        at = int(1000 * self.begin + 60_000)
        events = [{"timestamp": at + n, "ingestionTime": at + n, "message": f"{self.words} {n}.5"} for n in range(3)]
        return {"events": events, "nextForwardToken": "f/3"}

    def get_metric_data(self, **query: Any) -> dict[str, Any]:
        self.asked.append("figures")
        results = [
            {"Id": each["Id"], "Timestamps": [self._at(1), self._at(2)], "Values": [240.0, 480.0]}
            for each in query["MetricDataQueries"]
            if self.figures and each["MetricStat"]["Metric"]["MetricName"] in ("CPUUtilization", "GPUUtilization")
        ]
        return {"MetricDataResults": results}


@pytest.fixture
def open_cloud(tmp_path, monkeypatch):
    def make(age_s: float = 3600.0) -> Cloud:
        cloud = Cloud(tmp_path / "root", age_s)
        target = SimpleNamespace(sagemaker=cloud, logs=cloud, cloudwatch=cloud, store=cloud.store)
        session = SimpleNamespace(account=lambda: "123456789012", region="eu-west-1")
        connection = Site(target=target, following=lambda: target, session=session, pace=PollTimes(), options="")
        monkeypatch.setattr(find_job, "connect", lambda *_, **__: connection)
        return cloud

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return make


def test_the_page_of_a_job_is_drawn_from_what_the_cloud_says(open_cloud, tmp_path, capsys):
    open_cloud()
    (tmp_path / "here" / "algorun.toml").write_text('price = { "ml.g5.12xlarge" = 7.5 }')
    assert cli.main(["report", JOB]) == 0
    assert capsys.readouterr().out == f"{JOB}.html: 1 metric of 1 host, 0.1 MB\n"
    page = (tmp_path / "here" / f"{JOB}.html").read_text()
    assert chart(page, "loss")["columns"] == [[0.5, 1.5, 2.5]]
    assert (chart(page, "CPU")["x"], chart(page, "CPU")["columns"]) == ([60.0, 120.0], [[5.0, 10.0]])  # of 48 cores
    assert chart(page, "GPU")["columns"] == [[60.0, 100.0 * 480 / 400]]  # of 4 GPUs
    assert "0.75 " in page  # 360 s at 7.5 an hour
    assert (
        f'<a href="https://eu-west-1.console.aws.amazon.com/sagemaker/home?region=eu-west-1#/jobs/{JOB}">console</a>'
        in page
    )
    assert [each["title"] for each in data(page)["charts"]] == ["loss", "CPU", "GPU"]


def test_what_was_complete_long_after_the_end_is_not_fetched_again(open_cloud):
    cloud = open_cloud()
    assert cli.main(["report", JOB]) == 0
    assert "figures" in cloud.asked
    cloud.asked.clear()
    assert cli.main(["report", JOB, "--out", "again.html"]) == 0
    assert cloud.asked == []


def test_a_job_that_has_just_ended_is_fetched_again(open_cloud):
    cloud = open_cloud(age_s=60.0)
    assert cli.main(["report", JOB]) == 0
    cloud.asked.clear()
    assert cli.main(["report", JOB]) == 0
    assert "lines" in cloud.asked


def test_whoever_may_not_read_figures_gets_the_rest_and_the_figures_with_the_right(open_cloud, capsys):
    cloud = open_cloud()

    def denied(**_: Any) -> None:
        raise ApiError("AccessDenied", "not authorized to perform: cloudwatch:GetMetricData", "GetMetricData")

    cloud.get_metric_data = denied  # type: ignore[method-assign, assignment]
    assert cli.main(["report", JOB]) == 0
    assert "algorun: warning: how busy the hosts were cannot be read: " in capsys.readouterr().err
    del cloud.get_metric_data
    assert cli.main(["report", JOB]) == 0
    assert "figures" in cloud.asked


@pytest.mark.parametrize("words", [("--price", "much"), ("--metric", "loss")])
def test_a_wrong_option_is_one_error_before_anything_is_fetched(open_cloud, capsys, words):
    cloud = open_cloud()
    assert cli.main(["report", *words, JOB]) == 64
    assert capsys.readouterr().err.startswith(f"algorun: error: {words[0]}")
    assert cloud.asked == []


def test_whoever_may_not_read_logs_gets_one_error_and_no_page(open_cloud, tmp_path, capsys):
    cloud = open_cloud()

    def denied(**_: Any) -> None:
        raise ApiError("AccessDeniedException", "not authorized to perform: logs:GetLogEvents", "GetLogEvents")

    cloud.get_log_events = denied  # type: ignore[method-assign, assignment]
    assert cli.main(["report", JOB]) == 71
    said = capsys.readouterr().err
    assert "not authorized to perform: logs:GetLogEvents; fix: " in said
    assert said.count("algorun: ") == 2  # the note on uploads, and the error
    assert not (tmp_path / "here" / f"{JOB}.html").exists()


def test_a_damaged_cache_is_one_error_and_is_fetched_again(open_cloud, tmp_path, capsys):
    open_cloud()
    assert cli.main(["report", JOB]) == 0
    (path,) = (tmp_path / "cache").rglob("metrics.json")
    path.write_bytes(path.read_bytes()[:50])
    assert cli.main(["report", JOB]) == 64
    said = capsys.readouterr().err
    assert f"algorun: error: {path}: is not JSON: " in said
    assert said.endswith("; fix: the same line again: it fetches the job anew\n")
    assert cli.main(["report", JOB]) == 0


@pytest.mark.parametrize(("status", "code"), [("Completed", 64), ("Failed", 0), ("InProgress", 64)])
def test_a_job_without_metrics_has_an_error_or_if_it_failed_a_page_that_says_so(
    open_cloud, tmp_path, capsys, status, code
):
    cloud = open_cloud()
    cloud.status, cloud.words, cloud.figures = status, "no number", False
    assert cli.main(["report", JOB]) == code
    if code:
        assert "no line of the job's 1 log files holds a metric" in capsys.readouterr().err
    else:
        page = (tmp_path / "here" / f"{JOB}.html").read_text()
        assert "<p>No line of the job's logs holds a metric.</p>" in page


def test_a_large_output_stays_in_s3(open_cloud, capsys, monkeypatch):
    cloud = open_cloud()
    monkeypatch.setattr("algorun_client.commands.report.LARGEST_OUTPUT", 99)
    cloud.store.put(f"s3://local/out/{JOB}/output/output.tar.gz", b"x" * 100)
    assert cli.main(["report", JOB]) == 0
    said = capsys.readouterr().err
    assert (
        f"algorun: note: output has 100 B and is left out; to have its figures on the page: algorun fetch {JOB}" in said
    )


def test_a_folder_is_read_and_nothing_is_fetched(open_cloud, tmp_path, monkeypatch):
    cloud = open_cloud()
    write_job(tmp_path / "here" / JOB)  # named as the job
    monkeypatch.setitem(sys.modules, "boto3", None)
    assert cli.main(["report", JOB]) == 0
    assert (tmp_path / "here" / JOB / "report.html").exists()
    assert cloud.asked == []


def test_a_folder_of_code_is_not_taken_for_a_job(open_cloud, tmp_path, capsys):
    open_cloud()
    (tmp_path / "here" / "code").mkdir()
    assert cli.main(["report", "./code"]) == 64
    assert "code: is no job's folder" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["./x.html", "."])
def test_the_value_of_an_option_is_not_taken_for_a_folder(open_cloud, value):
    open_cloud()
    assert cli.main(["report", "--out", "./x.html", "--region", value, JOB]) == 0


SWEEP = """
[task.train]
run = ["main.py", "--lr", "0.1"]
metrics = { loss = "loss ([0-9.]+)" }
[task.train.sweep]
grid = { lr = [0.1, 0.01] }
best = "min:loss"
"""


@pytest.mark.parametrize(("has_best", "shown"), [(True, "train-2"), (False, "train-1")])
def test_the_page_of_a_sweep_has_its_table_and_the_curves_of_the_best_job(
    open_cloud, tmp_path, monkeypatch, has_best, shown
):
    cloud = open_cloud()
    (tmp_path / "here" / "algorun.toml").write_text(SWEEP)
    rows = [
        Row(
            task="train.lr-0.01",
            parameters=("0.01",),
            status="Completed",
            job="train-2",
            text="0.25" if has_best else "",
        ),
        Row(task="train.lr-0.1", parameters=("0.1",), status="Failed", job="train-1"),
    ]
    found = SweepResults(
        task="train", names=("lr",), goal=Goal("loss", True), rows=tuple(rows if has_best else rows[::-1])
    )
    monkeypatch.setattr(report.results, "results_of", lambda *_: found)
    asked = []
    real = report.find_job

    def find(connection, text, known):
        asked.append(text)
        return replace(real(connection, JOB, known), job=text)

    monkeypatch.setattr(report, "find_job", find)
    assert cli.main(["report", "train"]) == 0
    page = (tmp_path / "here" / f"{shown}.html").read_text()
    assert (asked[0], sorted(asked)) == (shown, ["train-1", "train-2"])
    both = data(page)["charts"][1]
    assert (both["title"], sorted(both["labels"])) == ("loss", ["lr=0.01", "lr=0.1"])
    assert [[value for value in each if value is not None] for each in both["columns"]] == [[0.5, 1.5, 2.5]] * 2
    cloud.asked.clear()
    assert cli.main(["report", "train"]) == 0
    assert cloud.asked == []
    assert "<h2>Sweep</h2>" in page
    assert ('<td class="number">0.25</td>' in page) == has_best
    assert "train-1" in page
    assert cli.main(["report", shown]) == 0  # by its name: no table of a sweep
    assert "<h2>Sweep</h2>" not in (tmp_path / "here" / f"{shown}.html").read_text()


def test_a_sweep_without_jobs_has_no_page(open_cloud, tmp_path, monkeypatch, capsys):
    open_cloud()
    (tmp_path / "here" / "algorun.toml").write_text(SWEEP)
    row = Row(task="train.lr-0.1", parameters=("0.1",), status="not submitted")
    monkeypatch.setattr(
        report.results, "results_of", lambda *_: SweepResults(task="train", names=("lr",), goal=None, rows=(row,))
    )
    assert cli.main(["report", "train"]) == 64
    assert (
        capsys.readouterr().err
        == "algorun: error: train: no job of the sweep exists yet; fix: algorun submit --task train\n"
    )


def test_json_ends_as_every_command_does(open_cloud, capsys):
    open_cloud()
    assert cli.main(["report", "--json", JOB]) == 0
    page, end = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (page["event"], page["file"], end["event"], end["job"]) == ("report", f"{JOB}.html", "end", JOB)
