"""metrics.json, as fetch writes it and the report reads it."""

from __future__ import annotations

import json

from algorun_client.aws.host_figures import HostMetric
from algorun_client.aws.job_state import InstanceGroups
from algorun_client.fetch.metrics_file import units, write_metrics
from algorun_report.folder.utilization_file import read_utilization

HOSTS = InstanceGroups((("ml.g5.12xlarge", 1), ("ml.z9.xlarge", 1)))
FIGURES = [
    HostMetric("CPUUtilization", "algo-1", (1000.0, 1060.0), (2400.0, 1200.0)),
    HostMetric("GPUUtilization", "algo-1", (1000.0, 1060.0), (398.0, 200.125)),
    HostMetric("MemoryUtilization", "algo-2", (1060.0,), (12.5,)),
    HostMetric("GPUUtilization", "algo-2", (1060.0,), (55.0,)),
]


def test_what_is_written_comes_back_in_percent_of_the_host(tmp_path):
    assert write_metrics(FIGURES, units(HOSTS), 60, tmp_path) == 1
    use = read_utilization(tmp_path, 940.0, "")
    found = {each.name: [(one.label, list(one.x), list(one.values)) for one in each.series] for each in use.utilization}
    assert found == {
        "CPU": [("algo-1", [60.0, 120.0], [50.0, 25.0])],
        "memory": [("algo-2", [120.0], [12.5])],
        "GPU": [("algo-1", [60.0, 120.0], [99.5, 50.03125])],
    }
    assert use.unknown == ("The number of GPUs of algo-2 is unknown, so figures of them are left out.",)


def test_the_file_has_cloudwatchs_own_figures(tmp_path):
    write_metrics(FIGURES, units(HOSTS), 300, tmp_path)
    value = json.loads((tmp_path / "metrics.json").read_text())
    assert value["period_s"] == 300
    assert value["hosts"] == {"algo-1": {"cores": 48, "gpus": 4}, "algo-2": {"cores": 4, "gpus": None}}
    assert value["series"][1] == {
        "metric": "GPUUtilization",
        "host": "algo-1",
        "times": [1000, 1060],
        "values": [398, 200.125],
    }
    assert [each.name for each in tmp_path.iterdir()] == ["metrics.json"]


def test_without_figures_there_is_no_file(tmp_path):
    assert write_metrics([], units(HOSTS), 60, tmp_path) == 0
    assert list(tmp_path.iterdir()) == []
