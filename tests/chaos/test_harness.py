"""The suite itself: it must see what a launcher would leave, and remove what a killed run of its own has left."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from . import cgroup
from .host import Setup
from .job import PROGRAMS, Job
from .network import namespaces
from .sweep import sweep

pytestmark = pytest.mark.root

UNTIDY = """
import os, subprocess, sys
argv = [sys.executable, "-I", sys.argv[1], "10.77.0.1", "12345"]
child = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
os.mkdir("/tmp/algorun-left")
open("/dev/shm/left", "w").close()
"""
KILLED = """
import os, pathlib, signal, sys
from tests.chaos.job import Job, Setup
job = Job(pathlib.Path(sys.argv[1]), "native", ["sleep", "600"], setups={"algo-2": Setup(memory_mb=100)})
job.start()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_leftovers_of_every_kind_are_seen(folder: Path) -> None:
    command = [sys.executable, "-I", "-c", UNTIDY, str(PROGRAMS / "holds_port.py")]
    job = Job(folder / "untidy", "native", command, setups={"algo-2": Setup(command=[])})
    try:
        job.end(job.start() + 30, ["algo-1"])
        found = " ".join(job.leftovers())
        for what in ("process", "port 10.77.0.1:12345", "/tmp/algorun-left", "/dev/shm/left"):
            assert what in found, found
    finally:
        job.close()
    assert not [name for name in [*namespaces(), *cgroup.names()] if name.startswith(job.network.name)]


def test_a_killed_run_is_swept(folder: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(folder / "killed")], cwd=PROGRAMS.parents[2])
    assert child.wait(60) == -9
    mine = f"algorun-chaos-{child.pid}-"
    time.sleep(0.1)
    assert [name for name in sweep() if name.startswith(mine)]
    assert not [name for name in [*namespaces(), *cgroup.names()] if name.startswith(mine)]
    assert mine not in Path("/proc/mounts").read_text()
