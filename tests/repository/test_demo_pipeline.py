"""What `make demo-pipeline` shows of the kill that it does on purpose."""

from __future__ import annotations

import runpy
import signal
import subprocess
import sys

from tests.conftest import ROOT

# A job whose other ranks print a traceback each once rank 3 is gone; it prints the process that may be killed first.
JOB = """
import subprocess, sys, time
rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(rank.pid, flush=True)
print("[0 algo-1] checkpoint: step-00000099 seconds: 0.1", flush=True)
print("[0 algo-1] step: 100/235 epoch: 1/1 train_loss: 2.47", flush=True)
code = rank.wait()
for number in (0, 1, 2):
    for line in range(35):
        print(f"[{number} algo-1] [rank{number}]: frame {line}", flush=True)
print("algorun: time of algo-1: 71.6 s\\n  0.3 s  start of the launcher", flush=True)
print(%s, flush=True)
sys.exit(128 - code)
"""


def shown(capsys, last: str) -> list[str]:
    demo = runpy.run_path(str(ROOT / "examples" / "demo_pipeline.py"))
    job = subprocess.Popen([sys.executable, "-c", JOB % repr(last)], stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    rank = int(job.stdout.readline())
    demo["follow"].__globals__["rank_of_host_two"] = lambda: (
        rank
    )  # the demo's own looks at all processes of the machine
    assert demo["follow"](job, until=100) == [(100, 2.47)]
    assert job.returncode == 128 + signal.SIGKILL
    return capsys.readouterr().out.splitlines()[2:]


def test_the_kill_is_three_lines(capsys):
    last = "failed nnodes=2 world_size=4 code=137 signal: rank 3 on algo-2, exit 137 (SIGKILL)"
    assert shown(capsys, last) == [
        "--- kill -9 of rank 3 at step 100",
        last,
        "--- as it should; 105 lines more of the ranks that lost rank 3 are in "
        "algorun-simulate/demo-pipeline/previous-1/algo-*/output/data/logs",
    ]


def test_nothing_is_left_out_where_the_job_says_no_end(capsys):
    assert len(shown(capsys, "Killed")) == 1 + 105 + 3
