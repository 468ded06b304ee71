"""The process that measures a host: with NVML, without it, with a broken one, and on a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from algorun.common import codec
from algorun.host.measuring.figure_setup import SamplerSetup
from algorun.timing.host_figures import from_line
from tests.launcher.machine.fake_nvml import GPUS, build

LIMIT_S = 30


@pytest.fixture(scope="module")
def nvml(tmp_path_factory):
    return build(tmp_path_factory.mktemp("nvml"))


@contextmanager
def sampler(file, library="", does="", **wanted):
    """A running sampler; its lines are those of stdout."""
    setup = SamplerSetup("algo-1", str(file), "lo", ("/tmp", "/absent", "/"), 0.0, **wanted)
    argv = [sys.executable, "-I", "-m", "algorun.host.measuring.figure_sampler", json.dumps(codec.to_json(setup))]
    environ = {**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML": does}
    process = subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    watchdog = signal.alarm(LIMIT_S)
    try:
        yield process
    finally:
        signal.alarm(watchdog)
        process.kill()
        process.wait()
        process.stdout.close()


def lines(process, count):
    return [process.stdout.readline() for _ in range(count)]


def warning(line):
    return json.loads(line).get("warning", "")


def test_it_writes_a_line_for_each_interval_and_one_at_its_end(tmp_path, nvml):
    file = tmp_path / "output" / "data" / "host_figures-algo-1.jsonl"
    with sampler(file, nvml, gpus=True, visible="1,3") as process:
        said = [from_line(line) for line in lines(process, 2)]
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    found = [from_line(line) for line in file.read_text().splitlines()]
    assert found[:2] == said
    for each in found:
        assert each.host == "algo-1"
        assert 0 <= each.cpu <= 1
        assert 1.5 < each.interval_s < 8
        assert 0 < each.memory_bytes < each.memory_limit_bytes
        assert each.network_in >= 0
        assert 0 < each.folders[0].free_bytes < each.folders[0].size_bytes
        assert "/absent" not in [folder.folder for folder in each.folders]
    assert [gpu.utilization for gpu in found[-1].gpus] == [0.25, 0.75]
    assert GPUS == 4


@pytest.mark.slow(but=["broken-*"])
@pytest.mark.parametrize(
    ("does", "expected"), [("broken", "nvmlInit_v2 returned 18"), ("hanging", "has not answered for 0.5 s")]
)
def test_gpus_that_cannot_be_measured_are_one_warning(does, expected, tmp_path, nvml):
    with sampler(tmp_path / "figures", nvml, does, gpus=True, silent_s=0.5) as process:
        first, *rest = lines(process, 3)
    assert expected in warning(first)
    assert all(from_line(line).gpus == () for line in rest)


def test_no_library_is_one_warning(tmp_path):
    with sampler(tmp_path / "figures", gpus=True) as process:
        first, second = lines(process, 2)
    assert "no figures of the GPUs: libnvidia-ml.so.1" in warning(first)
    assert from_line(second).gpus == ()


def test_a_library_that_crashes_ends_this_process_alone(tmp_path, nvml):
    with sampler(tmp_path / "figures", nvml, "crashing", gpus=True) as process:
        assert process.wait(LIMIT_S) == -signal.SIGSEGV


@pytest.mark.slow
def test_a_full_disk_is_one_warning(tmp_path):
    with sampler("/dev/full") as process:
        said = lines(process, 4)
    assert len([line for line in said if "No space left on device" in warning(line)]) == 1
    assert len([line for line in said if not warning(line)]) == 3


def test_it_ends_where_nobody_reads_it(tmp_path):
    with sampler(tmp_path / "figures") as process:
        process.stdout.close()
        assert process.wait(LIMIT_S) == 0
