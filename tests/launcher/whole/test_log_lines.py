"""The log of a whole job, with standard streams and locales as shells, CI systems and containers hand them over."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import clean_environ, needs_mpi

from .running import simulate


@dataclass(frozen=True)
class Job:
    """What a simulated job of two hosts left."""

    code: int
    out: str
    err: str
    files: list[str]  # the ranks' log files


def job(program: str, folder: Path, marker: str, begin: Callable[[], None] | None = None, **environ: str) -> Job:
    """Runs a job whose output nobody reads for its first half second. `begin` runs in the process before it starts."""
    (folder / "program.py").write_text(textwrap.dedent(program))
    process = subprocess.Popen(
        [sys.executable, "-I", "-m", "algorun", "simulate", "-j", "2x1", "program.py"],
        cwd=folder,
        env=clean_environ(ALGORUN_TEST=marker, **environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=begin,
    )
    time.sleep(0.5)
    out, err = process.communicate(timeout=60)
    logs = sorted((folder / "algorun-simulate").glob("algo-*/output/data/logs/rank-*.log"))
    return Job(process.returncode, out.decode(), err.decode(), [log.read_text() for log in logs])


def full_pipe(folder: Path, marker: str) -> Job:
    program = """
    import os
    for number in range(500):
        print(f"{number} " + "x" * 1000)
    print("y" * 300_000)
    """
    return job(program, folder, marker, lambda: os.set_blocking(1, False))


@pytest.mark.parametrize("begun", [full_pipe], indirect=True)
def test_a_pipe_that_does_not_block_gets_all_lines_with_their_ranks(begun):
    assert begun.code == 0, begun.err
    assert begun.out.splitlines()[-1] == "ok nnodes=2 world_size=2"
    for prefix in ("[0 algo-1] ", "[1 algo-2] "):
        lines = [line.removeprefix(prefix) for line in begun.out.splitlines() if line.startswith(prefix)]
        assert [line.split()[0] for line in lines[:500]] == [str(number) for number in range(500)]
        assert "".join(lines[500:]) == "y" * 300_000
    assert not [line for line in begun.out.splitlines() if line.startswith(("x", "y"))]


def closed(folder: Path, marker: str) -> Job:
    return job("print('done')", folder, marker, lambda: os.closerange(0, 3))


@pytest.mark.parametrize("begun", [closed], indirect=True)
def test_closed_standard_streams_change_no_job_and_no_file(begun):
    assert begun == Job(0, "", "", ["done\n", "done\n"])


def bare_locale(folder: Path, marker: str) -> Job:
    program = """
    import ctypes, os, subprocess, sys
    ctypes.CDLL(None).puts(b"from C")
    ctypes.CDLL(None).fflush(None)
    subprocess.run(["echo", "from a child"])
    print("é 漢 🙂 ━━━━")
    print("bytes of a file's name", os.fsdecode(b"\\xff"), file=sys.stderr)
    os._exit(0)  # nothing is flushed any more
    """
    return job(program, folder, marker, LC_ALL="C", LANG="")


@pytest.mark.parametrize("begun", [bare_locale], indirect=True)
def test_a_container_without_a_locale_prints_any_text_at_once(begun):
    assert begun.code == 0, begun.err
    for prefix in ("[0 algo-1] ", "[1 algo-2] "):
        lines = [line.removeprefix(prefix) for line in begun.out.splitlines() if line.startswith(prefix)]
        assert lines == ["from C", "from a child", "é 漢 🙂 ━━━━"]
        assert f"{prefix}bytes of a file's name \\udcff\n" in begun.err


# Bash does not wait for the filter, which takes 2.5 s: longer than mpirun, once its ranks have ended.
FILTERED = """#!/bin/bash
exec > >(while IFS= read -r line; do sleep 0.04; echo "at $SECONDS: $line"; done) 2>&1
for number in $(seq 60); do echo "line $number"; done
echo the end
"""


@pytest.mark.parametrize("engine", ["native", pytest.param("mpirun", marks=needs_mpi)])
def test_what_a_filter_of_a_shell_script_holds_at_the_ranks_end_is_not_lost(engine, tmp_path, nothing_left):
    """As a pipe shows it, which ends with its last writer."""
    (tmp_path / "train.sh").write_text(FILTERED)
    piped = subprocess.run(
        ["bash", "train.sh"], cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    told = [line.partition(": ")[2] for line in piped.stdout.splitlines()]
    done = simulate(engine, "train.sh", folder=tmp_path, marker=nothing_left, layout="2x1")
    assert done.code == 0, done.text
    for rank, host in enumerate(("algo-1", "algo-2")):
        lines = [line for line in done.text.splitlines() if line.startswith(f"[{rank} {host}] at ")]
        assert [line.partition(": ")[2] for line in lines] == told
        log = (done.folder / host / "output" / "data" / "logs" / f"rank-{rank:05d}.log").read_text()
        assert [line.partition(": ")[2] for line in log.splitlines()] == told


# As a wrong option ends a program, with its cause in the filter's hands.
FAILS = """#!/bin/bash
exec > >(while IFS= read -r line; do sleep SECONDS_A_LINE; echo "at $SECONDS: $line"; done) 2>&1
for number in 1 2 3 4 5 6; do echo "line $number"; done
echo "train.py: error: unrecognized arguments: --lrr 3" >&2
exit 2
"""


def failed_with_filter(seconds, folder, marker):
    """The first line of the failure."""
    (folder / "train.sh").write_text(FAILS.replace("SECONDS_A_LINE", str(seconds)))
    done = simulate("native", "train.sh", folder=folder, marker=marker, layout="2x1")
    assert done.code == 2, done.text
    told = [*(f"line {number}" for number in range(1, 7)), "train.py: error: unrecognized arguments: --lrr 3"]
    for rank, host in enumerate(("algo-1", "algo-2")):
        found = [line for line in done.text.splitlines() if line.startswith(f"[{rank} {host}] at ")]
        assert [line.partition(": ")[2] for line in found] == told
    return done.failure("algo-1").splitlines()[0]


def test_the_cause_that_a_filter_holds_when_its_script_fails_is_told(tmp_path, nothing_left):
    assert "train.py: error: unrecognized arguments: --lrr 3" in failed_with_filter(0.02, tmp_path, nothing_left)


@pytest.mark.slow
def test_lines_that_a_filter_holds_longer_than_the_verdict_takes_are_not_lost(tmp_path, nothing_left, nothing_beside):
    """They take 2.1 s. The verdict comes 1.7 s after the end, and the filter would be killed with it."""
    assert "line 2" in failed_with_filter(0.3, tmp_path, nothing_left)


@pytest.mark.parametrize("monitor", ["sleep 60", "while sleep 0.6; do echo busy; done"])
def test_a_program_in_the_background_keeps_no_job_waiting(monitor, tmp_path, nothing_left):
    (tmp_path / "train.sh").write_text(f"#!/bin/sh\n({monitor}) &\necho the end\n")
    begin = time.monotonic()
    done = simulate("native", "train.sh", folder=tmp_path, marker=nothing_left, layout="2x1")
    assert done.code == 0, done.text
    assert time.monotonic() - begin < 8
    assert done.text.count("] the end\n") == 2


# The stop comes while the filter has the script's last line, and the end is not told yet.
STOPPED = """#!/bin/bash
host=$PPID
exec > >(read -r line; sleep 0.1; kill -TERM $host; sleep 60) 2>&1
echo first; echo "no such file: train.csv"
exit 3
"""


def test_a_failure_before_a_stop_does_not_count_as_a_part_of_it(tmp_path, nothing_left):
    (tmp_path / "train.sh").write_text(STOPPED)
    done = simulate("native", "train.sh", folder=tmp_path, marker=nothing_left, layout="1x1")
    assert (done.code, done.failure("algo-1").splitlines()[0]) == (
        3,
        "exit: rank 0 on algo-1, exit 3, attempt 1: no message on stderr",
    ), done.text
