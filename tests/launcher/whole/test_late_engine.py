"""An engine that does not start the ranks: a program that blocks stands for mpirun."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from tests.conftest import MACHINE_PATH, algorun, commands

from .running import PROGRAMS, Running

BLOCKS = "exec sleep 1000"
SHORT = {"ALGORUN_START_S": "0.4", "ALGORUN_HEARTBEAT_S": "0.1", "ALGORUN_BLAME_S": "0.2", "ALGORUN_KILL_S": "0.2"}


@pytest.fixture
def path(tmp_path):
    """A PATH whose first mpirun blocks."""
    mpirun = tmp_path / "bin" / "mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "mpirun (Open MPI) 4.1.4" && exit\n{BLOCKS}\n')
    mpirun.chmod(0o755)
    return f"{mpirun.parent}{os.pathsep}{MACHINE_PATH}"


def test_the_job_ends_and_shows_what_every_process_waits_for(path, tmp_path, nothing_left):
    done = algorun(
        "simulate", "-j", "2x1", "--engine", "mpirun", str(PROGRAMS / "collective.py"),
        cwd=tmp_path, ALGORUN_TEST=nothing_left, PATH=path, **(SHORT | {"ALGORUN_BLAME_S": "2"}),
    )  # fmt: skip
    assert done.code == 67, done.text
    for rank, more in ((0, ""), (1, "; mpirun has not asked for its daemon here")):
        own = f"mpirun has not started rank {rank} within 0.4 s (ALGORUN_START_S){more}\n"
        assert f"algorun: {own}" in done.out, done.text
        for host in ("algo-1", "algo-2"):
            full = (done.folder / host / "output" / "data" / "failure-full.txt").read_text()
            assert own in full, "the other host's is named besides"
    assert "s of CPU: sleep 1000" in done.out


def test_the_commands_of_processes_are_shown_without_secrets(path, tmp_path, nothing_left):
    """Ranks that did start are among them. A value at the place where a command is cut is hidden too."""
    secret, mpirun = "correct-horse-battery", tmp_path / "bin" / "mpirun"
    words = f'-c "import time; time.sleep(1000) {"#" * 50}" --password'
    mpirun.write_text(mpirun.read_text().replace(BLOCKS, f"exec -a python {sys.executable} {words} {secret}"))
    mpirun.write_text(mpirun.read_text().replace("#!/bin/sh", "#!/bin/bash"))
    done = algorun(
        "simulate", "-j", "1x2", "--engine", "mpirun", str(PROGRAMS / "collective.py"), "--password", secret,
        cwd=tmp_path, ALGORUN_TEST=nothing_left, PATH=path, **SHORT,
    )  # fmt: skip
    assert done.code == 67, done.text
    assert "--password ***" in done.out, done.text
    kept = (done.folder / "algo-1" / "output" / "data" / "failure-full.txt").read_text()
    assert "correct" not in done.out + kept


# Two attempts of a blocked engine: this file has one of them, and a stop in it.
@pytest.mark.slow
def test_another_attempt_does_not_wait_for_ranks_that_never_started(path, tmp_path, nothing_left):
    done = algorun(
        "simulate", "-j", "1x2", "--engine", "mpirun", "--restarts", "1", str(PROGRAMS / "collective.py"),
        cwd=tmp_path, ALGORUN_TEST=nothing_left, PATH=path, **SHORT,
    )  # fmt: skip
    assert done.code == 68, done.text
    assert done.out.count("algorun: mpirun has not started ranks 0, 1 within 0.4 s (ALGORUN_START_S)\n") == 2
    first = (done.folder / "algo-1" / "output" / "data" / "failure-attempt-1.txt").read_text()
    assert first.startswith("engine: algo-1, exit 67: mpirun has not started ranks 0, 1 within 0.4 s"), first
    assert "s of CPU: sleep 1000" in first


def test_a_stop_does_not_wait_for_ranks_that_never_start(path, tmp_path, nothing_left):
    """The grace is for ranks that save."""
    running = Running(
        "mpirun", PROGRAMS / "collective.py", folder=tmp_path, marker=nothing_left, layout="2x1", PATH=path,
        ALGORUN_GRACE_S="1",
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while ["sleep", "1000"] not in commands(nothing_left):
        assert time.monotonic() < deadline
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 0, running.log.read_text()
    assert "stopped nnodes=2 world_size=2" in running.log.read_text()
    assert "hosts left with 0, 0" in running.log.read_text()
