"""What is read of the figures that launchers have measured of their hosts."""

from __future__ import annotations

import json

import pytest

from algorun.timing.host_figures import FolderFigures, GpuFigures, HostFigures, to_line
from algorun_report.folder import host_figures_file
from algorun_report.folder.host_figures_file import read_host_figures
from algorun_report.folder.log_files import ResultFolder
from algorun_report.folder.read import read_report
from algorun_report.page.render import render
from tests.report.job_folders import BEGIN, write_job
from tests.report.page.pages import chart


def figures(host: str, time: float, **changes) -> HostFigures:
    return HostFigures(
        **{
            "time": time, "start_s": 1.0, "interval_s": 2.0, "host": host, "cpu": 0.25, "cores": 4,
            "memory_bytes": 1 << 30, "memory_limit_bytes": 4 << 30, "network_in": 2e6, "network_out": 1e6,
            "disk_read": 0.0, "disk_write": 5e6, "folders": (FolderFigures("/tmp", 10, 100), FolderFigures("/", 50, 100)),
            "gpus": (GpuFigures(0.5, 1 << 30, 8 << 30), GpuFigures(1.0, 3 << 30, 8 << 30)), **changes,
        }
    )  # fmt: skip


def write(folder, host, *lines):
    (folder / f"host_figures-{host}.jsonl").write_text(
        "".join(each if isinstance(each, str) else to_line(each) for each in lines)
    )


def lines(found):
    return {
        (each.name, series.label): (list(series.x), list(series.values)) for each in found for series in each.series
    }


def test_what_a_launcher_writes_is_read_in_percent_of_the_host_and_mb_per_second(tmp_path):
    write(tmp_path, "algo-2", figures("algo-2", 104.0, cpu=1.0), figures("algo-2", 106.0))
    write(tmp_path, "algo-1", figures("algo-1", 103.0, gpus=(), network_in=None))
    found = read_host_figures([ResultFolder(tmp_path)], 100.0)
    assert lines(found.utilization) == {
        ("CPU", "algo-1"): ([3], [25]),
        ("CPU", "algo-2"): ([4, 6], [100, 25]),
        ("memory", "algo-1"): ([3], [25]),
        ("memory", "algo-2"): ([4, 6], [25, 25]),
        ("GPU", "algo-2"): ([4, 6], [75, 75]),
        ("GPU memory", "algo-2"): ([4, 6], [25, 25]),
        ("disk", "algo-1"): ([3], [90]),  # the fullest file system
        ("disk", "algo-2"): ([4, 6], [90, 90]),
    }
    assert lines(found.traffic)["network", "algo-2 in"] == ([4, 6], [2, 2])
    assert ("network", "algo-1 in") not in lines(found.traffic)
    assert lines(found.traffic)["disk traffic", "algo-1 written"] == ([3], [5])
    assert found.unreadable == ()


@pytest.mark.parametrize(
    "line",
    [
        to_line(figures("algo-1", 5.0))[:40],
        "[]\n",
        json.dumps({"format": 2, "time": 5.0, "host": "algo-1", "cpu": 1.0}) + "\n",
        json.dumps({"format": 1, "time": "5", "host": "algo-1", "cpu": 1.0}) + "\n",
        "\0" * 500_000,
    ],
)
def test_a_damaged_line_is_left_out_and_named(tmp_path, line):
    write(tmp_path, "algo-1", figures("algo-1", 3.0), line)
    found = read_host_figures([ResultFolder(tmp_path)], 0.0)
    assert lines(found.utilization)["CPU", "algo-1"] == ([3], [25])
    assert len(found.unreadable) == 1
    assert found.unreadable[0].startswith("host_figures-algo-1.jsonl: ")


@pytest.mark.parametrize("value", [True, "1", None, [], {}, 1e300])
def test_a_value_of_another_type_is_left_out_alone(tmp_path, value):
    record = json.loads(to_line(figures("algo-1", 3.0)))
    write(tmp_path, "algo-1", json.dumps(record | {"cpu": value, "gpus": value, "folders": [value]}) + "\n")
    found = read_host_figures([ResultFolder(tmp_path)], 0.0)
    assert {name for name, _ in lines(found.utilization)} == {"memory"}


def test_the_launcher_s_figures_go_before_those_of_cloudwatch(tmp_path):
    folder = write_job(tmp_path / "job")
    (folder / "output" / "logs").mkdir(parents=True)
    metrics = [
        {"metric": name, "host": "algo-1", "times": [BEGIN + 60.0], "values": [7.0]}
        for name in ("MemoryUtilization", "DiskUtilization")
    ]
    (folder / "metrics.json").write_text(json.dumps({"format": 1, "hosts": {}, "series": metrics}))
    write(folder / "output", "algo-1", figures("algo-1", BEGIN + 200.0, folders=()))
    page = render(read_report(folder))
    assert chart(page, "memory")["columns"] == [[25]]
    assert chart(page, "memory")["x"] == [200]
    assert chart(page, "disk")["columns"] == [[7]]
    assert chart(page, "network")["unit"] == "MB/s"
    assert not chart(page, "network")["percent"]


def test_of_a_very_long_job_fewer_samples_are_kept_and_every_peak(tmp_path, monkeypatch):
    monkeypatch.setattr(host_figures_file, "MOST_SAMPLES", 1)
    most = host_figures_file.FEWEST_SAMPLES
    write(tmp_path, "algo-1", *(figures("algo-1", 100.0 + n, cpu=float(n == 777)) for n in range(5 * most)))
    times, values = lines(read_host_figures([ResultFolder(tmp_path)], 100.0).utilization)["CPU", "algo-1"]
    assert len(times) <= most
    assert dict(zip(times, values, strict=True))[777] == 100
    assert values.count(100) == 1
