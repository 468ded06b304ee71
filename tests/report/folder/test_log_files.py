"""Log files that cannot be read, and hosts that have none."""

from __future__ import annotations

import json
import os

import pytest

from algorun import cli
from algorun_report.folder.read import read_report
from algorun_report.page.render import render
from tests.report.job_folders import job_json, write_job


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("folder", "Is a directory"),
        ("loop", "Too many levels of symbolic links"),
        pytest.param(
            "rights", "Permission denied", marks=pytest.mark.skipif(os.getuid() == 0, reason="root may read all")
        ),
    ],
)
def test_a_log_that_cannot_be_read_is_one_error_with_its_path(tmp_path, capsys, what, words):
    folder = write_job(tmp_path / "job")
    path = folder / "logs" / "algo-3-7.log"
    if what == "folder":
        path.mkdir()
    elif what == "loop":
        path.symlink_to(path)
    else:
        path.touch(mode=0)
    assert cli.main(["report", str(folder)]) == 64
    wanted = f"algorun: error: {path}: {words}; fix: make it readable, or fetch the job again\n"
    assert capsys.readouterr().err == wanted
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(("listed", "shown"), [(16, "16"), (2, "2"), (None, "2")])
def test_hosts_that_printed_nothing_count_too(tmp_path, listed, shown):
    folder = write_job(tmp_path / "job", hosts=2)
    described = {name: value for name, value in job_json(listed or 0).items() if listed or name != "hosts"}
    (folder / "job.json").write_text(json.dumps(described))
    assert f"<div><dt>hosts</dt><dd>{shown} x ml.g5.12xlarge</dd></div>" in render(read_report(folder))


def test_the_hosts_of_a_job_without_logs_are_those_of_its_description(tmp_path):
    folder = write_job(tmp_path / "job", hosts=2)
    for each in (folder / "logs").iterdir():
        each.unlink()
    (folder / "job.json").write_text(json.dumps(job_json(3, status="Failed", failure="algo-2: no memory")))
    assert "<dt>hosts</dt><dd>3 x " in render(read_report(folder))
