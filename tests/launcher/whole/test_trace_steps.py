"""A trace of steps of real jobs: all hosts on one clock, and a job that stops."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess

import pytest

from algorun_report.folder.trace_files import merge
from tests.launcher.inside.rank_processes import USER, write_light_torch
from tests.launcher.timing.trace_reader import slices
from tests.launcher.whole.running import Running
from tests.launcher.whole.supervisors import by_hand

STEPS = (
    USER
    + "import sys, time\nfor number in range(int(sys.argv[1])):\n    time.sleep(0.01)\n    step()\n    print(number, flush=True)\n"
)
AHEAD_S = 1000.0  # of the second host's clock


def light(folder):
    """A script of steps, with a torch that has nothing else."""
    write_light_torch(folder)
    (folder / "steps.py").write_text(STEPS)
    return folder / "steps.py"


def has_time_namespaces() -> bool:
    """Linux gives processes a monotonic clock of their own, to root."""
    argv = ["unshare", "-T", "--monotonic", "1", "true"]
    return shutil.which("unshare") is not None and not subprocess.run(argv, capture_output=True, check=False).returncode


def test_a_job_that_stops_leaves_the_steps_so_far(tmp_path, nothing_left):
    script = light(tmp_path)
    job = Running("native", script, 1000, folder=tmp_path, marker=nothing_left, ALGORUN_TRACE_STEPS="20-900")
    job.wait_for("] 40\n", 4)
    job.supervisor("algo-2").send_signal(signal.SIGTERM)
    assert job.end() == 0, job.log.read_text()
    ((trace, path),) = merge(tmp_path / "algorun-simulate", tmp_path, "")
    assert (trace.complete, trace.hosts, trace.ranks) == (False, 2, 4)
    assert trace.within_s is not None
    assert trace.within_s < 1
    found = slices(json.loads(path.read_text()))
    assert {f"rank {rank}: steps" for rank in range(4)} == {each.thread for each in found}
    assert min(sum(each.thread == f"rank {rank}: steps" for each in found) for rank in range(4)) >= 20
    assert found[0].name == "step 20"


@pytest.mark.skipif(not has_time_namespaces(), reason="no time namespaces (root and Linux 5.6)")
def test_a_host_whose_clock_is_far_ahead_is_put_on_the_leader_s(tmp_path, nothing_left):
    program = ["--slots", "2", light(tmp_path), 100]
    ahead = ["unshare", "-T", "--monotonic", str(int(AHEAD_S))]
    codes, outs, _ = by_hand(tmp_path, nothing_left, [program] * 2, before=([], ahead), ALGORUN_TRACE_STEPS="10-60")
    assert codes == [0, 0], outs
    abouts = []
    for host in ("algo-1", "algo-2"):
        (path,) = (tmp_path / host / "output" / "data").glob("trace_steps-*.json")
        abouts.append(json.loads(path.read_text())["metadata"]["algorun"])
    assert abouts[0]["added_s"] == 0
    assert abs(abouts[1]["added_s"] + AHEAD_S) <= abouts[1]["within_s"] < 0.1
    ((trace, path),) = merge(tmp_path, tmp_path, "")
    counts = [
        sum(each.thread == f"rank {rank}: steps" for each in slices(json.loads(path.read_text()))) for rank in range(4)
    ]
    assert counts == [51] * 4
    assert trace.complete
