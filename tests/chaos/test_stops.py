"""SIGTERM at any moment of a job: start, failure, restart, save, leave. One verdict, no torn checkpoint, nothing left."""

from __future__ import annotations

import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from .host import Host
from .job import HOSTS, PROGRAMS, Job, algorun
from .table import recorded

pytestmark = [pytest.mark.root, pytest.mark.slow]

MOMENTS = 40
LIFE_S = 4.0  # of a job that nobody stops, and a little more
TOLD = ((HOSTS[0],), (HOSTS[1],), HOSTS)
LIMIT_S = 30.0


def holds(host: Host) -> bool:
    """True once this host's launcher blocks SIGTERM or handles it: a Python that only starts is ended by it, as any program."""
    assert host.process is not None
    status = Path("/proc", str(host.process.pid), "status").read_text()
    masks = [int(mask, 16) for mask in re.findall(r"^Sig(?:Blk|Cgt):\s*(\w+)", status, re.M)]
    return any(mask >> (signal.SIGTERM - 1) & 1 for mask in masks)


def stopped_at(base: Path, moment_s: float, told: tuple[str, ...]) -> str:
    """One run; returns its verdict. AssertionError where the hosts disagree, or something is left."""
    job = Job(base, "native", algorun("run", str(PROGRAMS / "comes_and_goes.py")), environ={"ALGORUN_RESTARTS": "1"})
    try:
        job.start()
        job.until(lambda: all(map(holds, job.hosts.values())), "the launchers hold signals", LIMIT_S)
        at = time.monotonic()
        time.sleep(max(0.0, at + moment_s - time.monotonic()))
        for name in told:
            process = job.hosts[name].process
            assert process is not None
            process.send_signal(signal.SIGTERM)
        job.end(at + moment_s + LIMIT_S)
        codes = {host.code for host in job.hosts.values()}
        lines = {host.closing_line for host in job.hosts.values()}
        assert len(codes) == 1, job.show()
        assert len({line.partition(" why=")[0] for line in lines}) == 1, job.show()
        (code,), line = codes, lines.pop()
        # A failure that was reported before the stop is still the end of the job.
        assert (code == 0) == line.startswith(("ok ", "stopped ")), line
        assert code in (0, 1), job.show()
        for host in job.hosts.values():
            found = list((host.ml / "checkpoints").iterdir())
            assert all(path.read_text() == "whole" for path in found if not path.name.startswith(".")), found
        left = job.leftovers()
        assert not left, left
    finally:
        job.close()
    shutil.rmtree(base)
    return line.split()[0]


def test_a_stop_at_any_moment_has_one_verdict_on_all_hosts(folder: Path) -> None:
    with recorded(
        "F36", f"SIGTERM to one host or both, at {MOMENTS} moments of a job with a restart", "native"
    ) as record:
        kinds = [
            stopped_at(folder / f"stop-{number}", number * LIFE_S / MOMENTS, TOLD[number % len(TOLD)])
            for number in range(MOMENTS)
        ]
        record.verdict = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
        assert {"stopped", "ok"} <= set(kinds), kinds
