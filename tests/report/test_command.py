"""`algorun report` as a user runs it."""

from __future__ import annotations

import json
import sys

import pytest

from algorun import cli
from algorun.timing.host_clock import Offset
from algorun.timing.step_trace import END, STEP, Moments, TracePart, to_json
from algorun_client.common.json_lines import LastObject
from tests.launcher.timing.trace_reader import slices
from tests.report.job_folders import JOB, job_json, line, write_job
from tests.report.page.pages import chart, data


def test_the_page_lies_in_the_folder_and_its_data_are_the_figures_of_the_logs(tmp_path, capsys):
    folder = write_job(tmp_path / "job", hosts=2, steps=30)
    assert cli.main(["report", str(folder), "--price", "7.09"]) == 0
    page = (folder / "report.html").read_text()
    assert capsys.readouterr().out == f"{folder / 'report.html'}: 4 metrics of 2 hosts, 0.1 MB\n"
    loss = chart(page, "train:loss")
    assert loss["labels"] == ["algo-1", "algo-2"]
    assert loss["columns"] == [[float(line(host, step).split()[5]) for step in range(30)] for host in (1, 2)]
    assert loss["x"] == list(range(30))
    assert loss["over_time"]["x"] == [140.5 + step / 2 for step in range(30)]
    assert "5.95 " in page  # 2 hosts x 1,510 s at 7.09 an hour
    assert [each.name for each in folder.iterdir() if each.name.startswith(".")] == []


def test_the_parts_of_a_trace_become_one_file_beside_the_page(tmp_path, capsys):
    folder = write_job(tmp_path / "job")
    (folder / "output" / "logs").mkdir(parents=True)
    for number, host in enumerate(("algo-1", "algo-2")):
        moments = Moments(5, 5, True, 0, ((10.0, STEP), (10.5, 1), (10.75, END), (11.0, STEP)))
        made = to_json(TracePart(host, number, 1, {number: moments}, Offset(0.0, 0.001 * number), 0.0))
        (folder / "output" / f"trace_steps-attempt-1-{host}.json").write_text(json.dumps(made))
    (folder / "output" / "trace_steps-attempt-1-algo-3.json").write_text('{"traceEvents": [')
    out = tmp_path / "page.html"
    for words, path in (
        ((), folder / "trace_steps-attempt-1.json"),
        (("--out", str(out)), tmp_path / "page-trace_steps-attempt-1.json"),
    ):
        assert cli.main(["report", str(folder), *words]) == 0
        said = capsys.readouterr().out.splitlines()[1:]
        assert said == [
            f"trace of steps 5 to 5 of 2 ranks on 2 hosts, clocks within 1.00 ms: {path} (open it at https://ui.perfetto.dev)"
        ]
        assert [(each.name, each.begin) for each in slices(json.loads(path.read_text()))] == [
            ("step 5", 0.0), ("data", 0.5e6), ("step 5", 0.0), ("data", 0.5e6),
        ]  # fmt: skip
    assert cli.main(["report", "--json", str(folder)]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["traces"] == [str(folder / "trace_steps-attempt-1.json")]


def test_another_place_another_metric_and_json(tmp_path, capsys):
    folder = write_job(tmp_path / "job", steps=30, more=("psnr 31.5",))
    (folder / "job.json").write_text(json.dumps(job_json(metrics=[{"Name": "fid", "Regex": "fid ([0-9.]+)"}])))
    out = tmp_path / "page.html"
    assert cli.main(["report", "--json", "--metric", "psnr=psnr ([0-9.]+)", "--out", str(out), str(folder)]) == 0
    told, end = map(json.loads, capsys.readouterr().out.splitlines())
    assert end == LastObject(job=JOB).to_json()
    assert (told["event"], told["job"], told["file"], told["bytes"]) == ("report", JOB, str(out), out.stat().st_size)
    assert told["metrics"][0] == {"name": "psnr", "series": 1, "values": 1}
    assert told["warnings"] == ["metric fid: no line of the logs matches 'fid ([0-9.]+)'"]
    assert data(out.read_text())["charts"][0]["columns"] == [[31.5]]
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "command line: the following arguments are required: JOB; fix: algorun report -h"),
        (("F", "--price", "x"), "--price: 'x'; allowed: a number, 0 or more; fix: --price 1.006"),
        (("F", "--price", "-1"), "--price: '-1'; allowed: a number, 0 or more; fix: --price 1.006"),
        (("F", "--price", "inf"), "--price: 'inf'; allowed: a number, 0 or more; fix: --price 1.006"),
        (("F", "--out", "F/a/b"), "F/a/b: No such file or directory; fix: --out FILE in a folder with free space"),
        (("F/none",), "F/none: no such folder; fix: algorun fetch F/none, then algorun report with its folder"),
    ],
)
def test_bad_input_is_one_line_and_writes_no_page(tmp_path, capsys, words, message):
    folder = write_job(tmp_path / "job")
    assert cli.main(["report", *(word.replace("F", str(folder)) for word in words)]) == 64
    assert capsys.readouterr().err.replace(str(folder), "F") == f"algorun: error: {message}\n"
    assert not (folder / "report.html").exists()


def test_an_error_is_an_object_too_with_json(tmp_path, capsys):
    assert cli.main(["report", "--json", f"{tmp_path}/none"]) == 64
    out, err = capsys.readouterr()
    text = err.removeprefix("algorun: error: ").rstrip("\n")
    assert text.startswith(f"{tmp_path}/none: no such folder")
    assert json.loads(out) == LastObject(code=64, kind="error", text=text).to_json()


def test_the_error_without_the_extra(monkeypatch, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] in ("jinja2", "algorun_report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert cli.main(["report", "x"]) == 64
    fix = f"fix: {sys.executable} -m pip install boto3 'jinja2>=3.1' 'rich>=13'"
    assert capsys.readouterr().err == f"algorun: error: algorun report: jinja2 is not installed; {fix}\n"
