"""Hosts are measured while their ranks run, and the job does not depend on it."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from algorun.timing.host_figures import from_line
from tests.launcher.inside.rank_processes import eventually
from tests.launcher.whole.running import PROGRAMS, Running

SLOW_STEPS = PROGRAMS / "stepping.py"


def figures(folder, host):
    return folder / "algorun-simulate" / host / "output" / "data" / f"host_figures-{host}.jsonl"


def samplers(supervisor):
    return [child for child in supervisor.children() if "algorun.host.figure_sampler" in child.cmdline()]


@pytest.mark.timed
def test_every_host_has_a_file_of_figures_and_a_killed_sampler_is_one_warning(tmp_path, nothing_left):
    job = Running("native", SLOW_STEPS, 200, folder=tmp_path, marker=nothing_left, layout="2x1", ALGORUN_TIMES_S="1")
    job.wait_for("world_size 2", 1)
    second = job.supervisor("algo-2")
    eventually(lambda: samplers(second), limit_s=20)
    eventually(lambda: figures(tmp_path, "algo-2").exists(), limit_s=20)
    for each in samplers(second):
        os.kill(each.pid, signal.SIGKILL)
    assert job.end() == 0, job.log.read_text()
    assert job.log.read_text().count("warning: no more figures of this host: its process ended with 137") == 1
    for host in ("algo-1", "algo-2"):
        found = [from_line(line) for line in figures(tmp_path, host).read_text().splitlines()]
        assert {each.host for each in found} == {host}
        assert found[0].start_s > 0


def test_figures_can_be_switched_off(tmp_path, nothing_left):
    job = Running("native", SLOW_STEPS, 60, folder=tmp_path, marker=nothing_left, layout="1x1", ALGORUN_FIGURES="off")
    job.wait_for("world_size 1", 1)
    assert not any(samplers(each) for each in psutil.Process(job.process.pid).children())
    assert job.end() == 0, job.log.read_text()
    assert not figures(tmp_path, "algo-1").exists()
