"""A host of a local job ends as a container does: with its first process, and nobody else with it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from algorun_client.local import host_processes
from algorun_client.local.host_processes import HostProcesses, ProcessStart

LIMIT_S = 20
LEAVES = "import subprocess, sys; print(subprocess.Popen(['sleep', '100']).pid, flush=True); sys.exit(7)"


def test_what_a_host_leaves_is_killed_while_its_number_is_still_its_own(tmp_path, monkeypatch):
    """Once the kernel has given the number to a stranger, the signal would reach the stranger's group."""
    sent = []

    def send(pid: int, number: int, *, group: bool) -> None:
        sent.append((number, group, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]))
        os.killpg(pid, number)

    monkeypatch.setattr(host_processes, "send_signal", send)
    hosts = HostProcesses()
    stream = tmp_path / "algo-1.log"
    hosts.start("algo-1", [sys.executable, "-c", LEAVES], dict(os.environ), ProcessStart(tmp_path, stream))
    deadline = time.monotonic() + LIMIT_S
    while not hosts.have_ended and time.monotonic() < deadline:
        hosts.pump(0.1)
    assert hosts.codes == {"algo-1": 7}
    assert sent == [(signal.SIGKILL, True, "Z")]
    hosts.close()
