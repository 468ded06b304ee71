"""A wrong option of a bundled entrypoint is one error of the job's, said before any rank starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from algorun.host.preparing import entrypoint_options
from algorun.inside import rsh
from tests.conftest import algorun, clean_environ, commands, needs_mpi

from .running import Running
from .supervisors import by_hand

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


# The same code with another value or at another moment.
@pytest.mark.slow(but=["ddp", "ddp, no file", "pipeline, AWS's", "mpi-basics"])
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


@pytest.mark.parametrize(
    ("program", "says", "warns"),
    [
        (["-j", "2x4", "ddp", "--tp", "2"], "2 ranks each (option --tp): 0-1, 2-3, 4-5, 6-7", False),
        (["-j", "2x3", "ddp", "--tp", "2"], "2 ranks each (option --tp): 0-1, 2-3, 4-5", True),
        (["-j", "2x2", "pipeline", "--pp", "2", "--tp", "2"], "2 ranks each (option --tp): 0-1, 2-3", False),
        (["-j", "17x8", "ddp", "--tp", "8"], "8 ranks each (option --tp): 0-7, 8-15, .., 128-135", False),
    ],
)
def test_a_plan_shows_tensor_groups_and_warns_of_one_on_several_hosts(program, says, warns, tmp_path):
    done = algorun("plan", *program, cwd=tmp_path)
    assert done.code == 0, done.err
    assert f"tensor groups, {says}\n" in done.out
    warning = "warning: option --tp: 2, with 3 ranks per host: a tensor group lies on 2 hosts"
    assert (warning in done.out) == warns
    (line, *_) = json.loads(algorun("plan", "--json", *program, cwd=tmp_path).out)["groups"]
    assert line == f"tensor groups, {says}"


# A rank loads torch to show that a neighbour's behaviour stays as it was.
@pytest.mark.slow
def test_options_of_a_good_job_are_no_news(tmp_path, nothing_left):
    done = algorun("simulate", "-j", "2x1", "--engine", "native", "pipeline", "--pp", "2", "--profile-only", "True",
                   "--width", "16", "--depth", "2", cwd=tmp_path, ALGORUN_TEST=nothing_left)  # fmt: skip
    assert done.code == 0, done.text
    done = algorun("plan", "-j", "2x2", "pipeline", "--pp", "4", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "world_size 4" in done.out
    assert "tensor groups" not in done.out


def dead_disk(folder, marker):
    """A pipe that nobody writes into stands for the disk; the ranks wait for it as well, until the stop."""
    os.mkfifo(folder / "options.toml")
    begun = time.monotonic()
    # Ranks that wait for the disk already save nothing until the grace has passed.
    options = ("ddp", "--config", folder / "options.toml")
    running = Running("native", *options, folder=folder, marker=marker, ALGORUN_GRACE_S="1")
    running.wait_for("node_rank", 1)
    seconds = time.monotonic() - begun
    running.process.send_signal(signal.SIGTERM)
    running.end()
    return seconds


@pytest.mark.parametrize("begun", [dead_disk], indirect=True)
def test_options_that_wait_for_a_dead_disk_leave_the_word_to_the_ranks(begun):
    assert begun >= entrypoint_options.LIMIT_S


def test_a_stop_does_not_wait_for_the_check(tmp_path, nothing_left):
    """One host, so that it is past the gate."""
    os.mkfifo(tmp_path / "options.toml")
    program = ("ddp", "--config", tmp_path / "options.toml")
    running = Running("native", *program, folder=tmp_path, marker=nothing_left, layout="1x2")
    deadline = time.monotonic() + 30
    while not any("algorun_train.jobs.check" in words for words in commands(nothing_left)):
        assert time.monotonic() < deadline
    begun = time.monotonic()
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 0, running.log.read_text()
    assert time.monotonic() - begun < entrypoint_options.LIMIT_S * 0.8
    assert "stopped nnodes=1" in running.log.read_text()


@pytest.mark.parametrize("program", ["ddp", "pipeline", "mpi-basics"])
def test_options_are_checked_without_torch(program, tmp_path):
    code = "import sys; from algorun_train.jobs import check; print(check.main(sys.argv[1:]), {'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, program], input="2\n", cwd=tmp_path, env=clean_environ(),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("0 set()\n", "")


@needs_mpi
def test_a_daemon_waits_until_the_options_are_checked_on_its_host(tmp_path, nothing_left):
    """mpirun asks for the second host's daemon as soon as the leader has checked its options."""
    folders = [tmp_path / "leader", tmp_path / "follower"]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "options.toml").write_text("size = 10\n")
    os.mkfifo(folders[1] / "options.toml")  # the check reads it to its end, which comes when the test closes it
    slow = os.open(folders[1] / "options.toml", os.O_RDWR)

    def check_once_mpirun_has_asked(_):
        deadline = time.monotonic() + 30
        while not any(rsh.__file__ in words for words in commands(nothing_left)):
            assert time.monotonic() < deadline
        time.sleep(0.5)  # for its request, which takes milliseconds
        (folders[1] / "file.toml").write_text("size = 10\n")
        os.replace(folders[1] / "file.toml", folders[1] / "options.toml")  # for the rank
        os.close(slow)

    program = ["mpi-basics", "--config", "options.toml"]
    programs = [["--engine", "mpirun", "--slots", "1", "--cwd", folder, *program] for folder in folders]
    codes, outs, _ = by_hand(tmp_path, nothing_left, programs, meanwhile=check_once_mpirun_has_asked)
    assert codes == [0, 0], outs
