"""A wrong option of a bundled entrypoint is one error of the job's, said before any rank starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from algorun.host import entrypoint_options
from tests.conftest import algorun, clean_environ, ours

from .running import Running

WRONG = {
    "ddp": (["ddp", "--lr", "-1"], "option --lr: '-1' from the command line is not allowed; allowed: a number above 0"),
    "ddp, unknown": (
        ["ddp", "--epoch", "3"],
        "unknown option --epoch from the command line; fix: did you mean --epochs?",
    ),
    "ddp, no file": (["ddp", "--config", "absent.toml"], "option --config: absent.toml cannot be read"),
    "pipeline": (["pipeline", "--batch-size", "10", "--microbatches", "4"], "option --microbatches: 4 does not divide"),
    "pipeline, ranks": (
        ["pipeline", "--pp", "3"],
        "option --pp: 3 does not divide the job's 4 ranks; allowed: 1, 2, 4",
    ),
    "pipeline, AWS's": (["pipeline", "--mp-parameters", '{"partitions": 0}'], "mp_parameters: partitions = 0"),
    "mpi-basics": (["mpi-basics", "--size", "0"], "option --size: '0' from the command line is not allowed"),
}


@pytest.mark.parametrize(("program", "says"), WRONG.values(), ids=WRONG.keys())
def test_no_rank_starts_and_the_job_says_it_once(program, says, tmp_path, nothing_left):
    done = algorun("simulate", "-j", "2x2", *program, cwd=tmp_path, ALGORUN_TEST=nothing_left)
    assert done.code == 64, done.text
    for host in ("algo-1", "algo-2"):
        failure = (done.folder / host / "output" / "failure").read_text()
        assert failure.startswith("configuration: algo-")
        assert f", exit 64: {says}" in failure
        assert not list((done.folder / host / "output" / "data").glob("logs/rank-*.log"))
        assert "also: configuration" not in failure, "the other host's is the same"
    assert done.text.count(says) == 2, "the failure and the closing line"
    assert "node_rank" not in done.text, "no table of ranks"


@pytest.mark.parametrize(("program", "says"), WRONG.values(), ids=WRONG.keys())
def test_a_plan_says_it_too(program, says, tmp_path):
    done = algorun("plan", "-j", "2x2", *program, cwd=tmp_path)
    assert done.code == 64
    assert f"algorun: error: {says}" in done.err
    assert done.out == ""


def test_options_of_a_good_job_are_no_news(tmp_path, nothing_left):
    done = algorun("simulate", "-j", "2x1", "--engine", "native", "pipeline", "--pp", "2", "--profile-only", "True",
                   "--width", "16", "--depth", "2", cwd=tmp_path, ALGORUN_TEST=nothing_left)  # fmt: skip
    assert done.code == 0, done.text
    done = algorun("plan", "-j", "2x2", "pipeline", "--pp", "4", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "world_size 4" in done.out


def test_options_that_wait_for_a_dead_disk_leave_the_word_to_the_ranks(tmp_path, nothing_left):
    """A pipe that nobody writes into stands for the disk; the ranks wait for it as well, until the stop."""
    os.mkfifo(tmp_path / "options.toml")
    begun = time.monotonic()
    running = Running("native", "ddp", "--config", tmp_path / "options.toml", folder=tmp_path, marker=nothing_left)
    running.wait_for("node_rank", 1)
    assert time.monotonic() - begun >= entrypoint_options.LIMIT_S
    running.process.send_signal(signal.SIGTERM)
    running.end()


def test_a_stop_does_not_wait_for_the_check(tmp_path, nothing_left):
    """One host, so that it is past the gate."""
    os.mkfifo(tmp_path / "options.toml")
    program = ("ddp", "--config", tmp_path / "options.toml")
    running = Running("native", *program, folder=tmp_path, marker=nothing_left, layout="1x2")
    deadline = time.monotonic() + 30
    while not any("algorun_train.jobs.check" in process.cmdline() for process in ours(nothing_left)):
        assert time.monotonic() < deadline
    begun = time.monotonic()
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 0, running.log.read_text()
    assert time.monotonic() - begun < entrypoint_options.LIMIT_S / 2
    assert "stopped nnodes=1" in running.log.read_text()


@pytest.mark.parametrize("program", ["ddp", "pipeline", "mpi-basics"])
def test_options_are_checked_without_torch(program, tmp_path):
    code = "import sys; from algorun_train.jobs import check; print(check.main(sys.argv[1:]), {'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, program], input="2\n", cwd=tmp_path, env=clean_environ(),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("0 set()\n", "")
