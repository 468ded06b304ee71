"""Samples of simulated hosts, and how they answer as CloudWatch does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from algorun_client.aws.host_figures import read_figures
from algorun_client.aws.job_state import InstanceGroups, JobState, JobTimes
from algorun_client.local.host_figures_reading import LocalCloudWatch
from algorun_client.local.host_samples import HostMeter, ProcessUse, Sampling, all_processes, descendants
from algorun_client.request.model import Kind

BYTES = 1000


def use(parent: int, cpu_s: float, memory: int = 0) -> ProcessUse:
    return ProcessUse(parent, cpu_s, memory)


def test_a_host_is_its_first_process_and_all_that_it_has_started():
    processes = {1: use(0, 0), 10: use(1, 0), 11: use(10, 0), 12: use(11, 0), 20: use(1, 0), 21: use(20, 0)}
    assert descendants(10, processes) == {10, 11, 12}
    assert descendants(99, processes) == set()
    assert descendants(5, {5: use(6, 0), 6: use(5, 0)}) == {5, 6}


def test_cpu_counts_100_for_each_core_and_memory_the_share_of_the_machine(tmp_path):
    meter = HostMeter(tmp_path, BYTES)
    first = meter.sample(10, {10: use(1, 5.0, 100), 11: use(10, 7.0, 50), 99: use(1, 50.0, 900)}, 100.0)
    assert "CPUUtilization" not in first
    assert first["MemoryUtilization"] == 15.0
    assert 0 < first["DiskUtilization"] <= 100
    # 11 has ended, 12 is new: 1 s of 10 and 2 s of 12, in 2 s
    second = meter.sample(10, {10: use(1, 6.0, 100), 12: use(10, 2.0, 200)}, 102.0)
    assert (second["CPUUtilization"], second["MemoryUtilization"]) == (150.0, 30.0)


def test_this_process_is_among_all_with_its_parent():
    found = dict(all_processes())[os.getpid()]
    assert found.parent == os.getppid()
    assert found.cpu_s > 0
    assert found.memory > 1 << 20


def test_a_busy_process_is_measured_while_it_runs(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    stream = tmp_path / "samples" / "algo-1"
    try:
        with Sampling(lambda: {"algo-1": process.pid}, {"algo-1": tmp_path}, {"algo-1": stream}):
            deadline = time.monotonic() + 20
            while not stream.exists() or len(stream.read_text().splitlines()) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    samples = [json.loads(line) for line in stream.read_text().splitlines()]
    assert samples[1]["CPUUtilization"] > 5  # other work may share the core
    assert samples[1]["time"] > samples[0]["time"]


@pytest.fixture
def root(tmp_path):
    """A job with samples of two hosts."""
    samples = tmp_path / "jobs" / "training" / "job" / "samples"
    samples.mkdir(parents=True)
    for host in (1, 2):
        lines = [
            {"time": 1000.2 + n, "CPUUtilization": 100.0 * host + n, **({"DiskUtilization": 7.0} if n else {})}
            for n in range(4)
        ]
        (samples / f"algo-{host}").write_text("".join(f"{json.dumps(each)}\n" for each in lines) + '{"time": 10')
    return tmp_path


def job(**more) -> JobState:
    at = JobTimes(created=datetime.fromtimestamp(990, UTC), ended=datetime.fromtimestamp(1010, UTC))
    return JobState(
        kind=Kind.TRAINING, job="job", status="Completed", hosts=InstanceGroups((("x", 2),)), times=at, **more
    )


def test_figures_are_averages_of_each_period(root):
    now = datetime.fromtimestamp(1100, UTC)
    _, found = read_figures(LocalCloudWatch(root), job(), now, 1)
    assert [(each.metric, each.host, each.times, each.values) for each in found] == [
        ("CPUUtilization", "algo-1", (1000.0, 1001.0, 1002.0, 1003.0), (100.0, 101.0, 102.0, 103.0)),
        ("CPUUtilization", "algo-2", (1000.0, 1001.0, 1002.0, 1003.0), (200.0, 201.0, 202.0, 203.0)),
        ("DiskUtilization", "algo-1", (1001.0, 1002.0, 1003.0), (7.0, 7.0, 7.0)),
        ("DiskUtilization", "algo-2", (1001.0, 1002.0, 1003.0), (7.0, 7.0, 7.0)),
    ]
    _, found = read_figures(LocalCloudWatch(root), job(), now, 60)
    assert (found[0].times, found[0].values) == ((960.0,), (101.5,))


@pytest.mark.parametrize(
    "host", ["../job/samples/algo-1", "job/../../x", "job/.hidden", ".job/algo-1", "algo-1", "no/algo-1"]
)
def test_a_host_that_is_none_has_no_figures(root, host):
    stat = {
        "Metric": {
            "Namespace": "/aws/sagemaker/TrainingJobs",
            "MetricName": "CPUUtilization",
            "Dimensions": [{"Name": "Host", "Value": host}],
        },
        "Period": 60,
    }
    answer = LocalCloudWatch(root).get_metric_data(
        MetricDataQueries=[{"Id": "m0", "MetricStat": stat}],
        StartTime=datetime.fromtimestamp(0, UTC),
        EndTime=datetime.fromtimestamp(5000, UTC),
    )
    assert answer["MetricDataResults"][0]["Values"] == []
