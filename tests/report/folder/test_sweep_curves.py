"""The curves of the jobs of a sweep, read from folders beside each other."""

from __future__ import annotations

import json

from algorun_report.folder.read import read_report
from algorun_report.page.render import render
from algorun_report.run_report import Axis

from ..job_folders import job_json


def a_job(folder, name, losses):
    logs = folder / name / "logs"
    logs.mkdir(parents=True)
    text = "".join(f"step: {10 * n} train_loss: {loss}\n" for n, loss in enumerate(losses, start=1))
    (logs / "algo-1-1795400000.log").write_text(f"{text}epoch: 1/1 train_loss: 9\nhost of {name}\n")
    (folder / name / "job.json").write_text(json.dumps(job_json(job=name)))


def a_sweep(folder, rows, names=("lr",)):
    listed = [{"job": job, "status": "Completed", "parameters": values, "value": 0.1} for job, values in rows]
    (folder / "sweep.json").write_text(json.dumps({"names": list(names), "metric": "loss", "rows": listed}))


def test_each_job_has_a_curve_of_its_own_in_one_chart(tmp_path):
    a_job(tmp_path, "best", (3, 2, 1))
    a_job(tmp_path, "other", (4, 3))
    a_sweep(tmp_path / "best", [("best", ["0.1"]), ("other", ["0.01"]), ("never-fetched", ["0.5"])])
    report = read_report(tmp_path / "best")
    (steps, epochs) = report.sweep.metrics
    assert [(each.label, list(each.values)) for each in steps.series] == [("lr=0.1", [3, 2, 1]), ("lr=0.01", [4, 3])]
    assert (steps.title, epochs.title) == ("train:loss by step", "train:loss by epoch")
    assert (report.sweep.axis, report.sweep.left_out) == (Axis.ORDER, 1)
    data = json.loads(render(report).split('id="data">')[1].split("</script>")[0])
    (chart,) = [each for each in data["charts"] if each["title"] == "train:loss by step" and len(each["labels"]) == 2]
    assert (chart["axis"], chart["labels"], chart["x"]) == ("step", ["lr=0.1", "lr=0.01"], [10, 20, 30])


def test_a_job_alone_and_names_that_are_paths_give_no_chart(tmp_path):
    a_job(tmp_path, "best", (3, 2, 1))
    a_job(tmp_path, "secret", (4, 3))
    a_sweep(
        tmp_path / "best", [("best", ["1"]), ("../secret", ["2"]), (str(tmp_path / "secret"), ["3"]), ("..", ["4"])]
    )
    report = read_report(tmp_path / "best")
    assert report.sweep.metrics == ()
    assert "host of secret" not in render(report)


def test_twelve_jobs_are_drawn_and_the_others_counted(tmp_path):
    names = [f"job-{n:02}" for n in range(15)]
    for name in names:
        a_job(tmp_path, name, (2, 1))
    a_sweep(tmp_path / names[0], [(name, [name]) for name in names])
    report = read_report(tmp_path / names[0])
    assert [len(each.series) for each in report.sweep.metrics] == [12, 12]
    assert report.sweep.left_out == 3
    assert "3 more jobs are not in them" in render(report)
