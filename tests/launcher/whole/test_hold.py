"""Hosts that stay after a failure, and the shell on them: what a person finds there, what it costs, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ENGINES, FAILS_ALONE, algorun, clean_environ

from .running import Running

PROGRAM = """\
import os, signal, sys, time

rank, how = os.environ["RANK"], sys.argv[1]
open(f"scratch-{rank}", "w").write("what the rank has left")
print("here", flush=True)
if how == "fails" and rank == "3":
    raise ValueError("planned")
if how == "badly":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
if how != "well":
    time.sleep(30)
"""
SECRET = "a-word-that-no-file-may-have"
LOOK = 'echo "rank $RANK of $WORLD_SIZE, $(pwd), $(cat scratch-$RANK)"; ls -d $SM_MODEL_DIR; echo "$ALGORUN_COMMAND"; echo $TOLD; exit 7'


@pytest.fixture
def job(tmp_path, nothing_left):
    (tmp_path / "train.py").write_text(PROGRAM)
    running = []

    def start(how, engine="native", **environ):
        environ = {"ALGORUN_HOLD_ON_FAILURE_S": "60", "TOLD": SECRET, **FAILS_ALONE, **environ}
        running.append(Running(engine, "train.py", how, folder=tmp_path, marker=nothing_left, **environ))
        return running[-1]

    yield start
    for each in running:
        each.process.kill()
        each.process.wait(30)


def tree(job, host):
    return job.folder / "algorun-simulate" / host


def shell(job, host, line):
    argv = [sys.executable, "-I", "-m", "algorun", "shell", str(tree(job, host))]
    return subprocess.run(
        argv,
        cwd="/",
        env=clean_environ(TERM="vt100"),
        input=line,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow(but=["native"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_host_stays_as_its_ranks_left_it_until_a_stop(engine, job):
    held = job("fails", engine, ALGORUN_PRICE="12")
    held.wait_for("is held for 1 min 0 s, until ", 2)
    log = held.log.read_text()
    said = log.index("exception: rank 3 on algo-2, exit 1")
    assert said < log.index("algorun: algo-1 is held")
    assert (
        "algorun: so are the other hosts that are left: at most 0.03 host-hours, 0.40 at the price of ALGORUN_PRICE\n"
        in log
    )
    failure = held.failure("algo-2").splitlines()[0]
    for host, rank in (("algo-1", 0), ("algo-2", 3)):
        looked = shell(held, host, LOOK)
        assert looked.returncode == 7, looked.stderr
        first, model, command, told = looked.stdout.splitlines()
        assert first == f"rank {rank} of 4, {held.folder}, what the rank has left"
        assert model in (str(tree(held, host) / "model"), "/opt/ml/model")
        assert command.endswith(" -u train.py fails")
        assert told == SECRET
        assert (
            f"algorun: the environment of rank {rank} on {host}, whose command is in $ALGORUN_COMMAND; the host is held until "
            in looked.stderr
        )
        assert f"algorun: {failure}\n" in looked.stderr
        found = [
            path
            for path in tree(held, host).rglob("*")
            if path.is_file() and SECRET in path.read_text(errors="replace")
        ]
        assert found == []
    held.process.send_signal(signal.SIGTERM)
    assert held.end() == 1
    assert held.log.read_text().count(" s: SIGTERM\n") == 2
    assert not (tree(held, "algo-1") / "algorun-held.json").exists()
    assert held.failure("algo-2").splitlines()[0] == failure
    gone = shell(held, "algo-2", LOOK)
    assert gone.returncode == 64
    assert "algorun: error: shell: the host of " in gone.stderr
    assert "submit --hold-on-failure 30m, keeps the hosts of a job that fails" in gone.stderr


@pytest.mark.parametrize("words", [("train-0007-3f0c1d",), ("algo-1",)])
def test_a_job_without_its_host_is_told_what_to_type(words, tmp_path):
    done = algorun("shell", *words, cwd=tmp_path)
    assert done.code == 64
    assert (
        f"{words[0]!r} is no folder; allowed: that of a simulated host, or a job and its host; fix: algorun shell {words[0]} algo-1"
        in done.err
    )


def test_a_hold_ends_by_itself(job):
    held = job("fails", ALGORUN_HOLD_ON_FAILURE_S="1")
    assert held.end() == 1
    log = held.log.read_text()
    assert log.count("is held for 1 s, until ") == 2
    assert log.count(" s: the time is over\n") == 2


@pytest.mark.parametrize("how", ["well", "waits", "badly"])
def test_a_job_that_ends_well_or_was_asked_to_stop_is_not_held(how, job):
    ended = job(how)
    ended.wait_for("here", 4)
    if how != "well":
        ended.process.send_signal(signal.SIGTERM)
    ended.end()
    assert "is held" not in ended.log.read_text()


def test_a_wrong_option_of_a_bundled_program_is_not_held(tmp_path, nothing_left):
    line = ("simulate", "-j", "2x1", "ddp", "--no-such", "1")
    done = algorun(*line, cwd=tmp_path, ALGORUN_TEST=nothing_left, ALGORUN_HOLD_ON_FAILURE_S="60")
    assert done.code == 64
    assert done.seconds < 50
    assert "is held" not in done.text


def test_a_stop_that_comes_while_the_verdict_is_told_prevents_the_hold(tmp_path, nothing_left):
    """A rank that is slow to end keeps its host between verdict and hold."""
    slow = PROGRAM.replace(
        "time.sleep(30)",
        "signal.signal(signal.SIGTERM, lambda *_: (print('ends', flush=True), time.sleep(1.2)))\n    time.sleep(30)",
    )
    (tmp_path / "train.py").write_text(slow)
    job = Running("native", "train.py", "fails", folder=tmp_path, marker=nothing_left, ALGORUN_HOLD_ON_FAILURE_S="60")
    job.wait_for("ends", 1)
    job.supervisor("algo-1").send_signal(signal.SIGTERM)
    job.wait_for("algo-2 is held", 1)
    assert "algo-1 is held" not in job.log.read_text()
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 1


def test_what_stands_for_a_rank_ends_with_a_launcher_that_is_killed(job):
    held = job("fails")
    held.wait_for("is held for ", 2)
    left = json.loads((tree(held, "algo-2") / "algorun-held.json").read_text())["pid"]
    held.supervisor("algo-2").kill()
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{left}"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    gone = shell(held, "algo-2", LOOK)
    assert gone.returncode == 64
    assert "algo-2 is not held any more" in gone.stderr
    held.process.send_signal(signal.SIGINT)
    assert held.end() == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": "algo-1", "rank": 0, "until": 1.0, "pid": "x"}', "null"])
def test_a_damaged_file_is_one_error(text, tmp_path):
    (tmp_path / "algorun-held.json").write_text(text)
    done = algorun("shell", str(tmp_path), cwd=tmp_path)
    assert done.code == 64
    assert "algorun-held.json cannot be read" in done.err


def test_a_stranger_with_the_number_of_a_killed_process_is_no_held_host(tmp_path):
    left = {"host": "algo-1", "rank": 0, "until": 1.0, "pid": os.getpid()}
    (tmp_path / "algorun-held.json").write_text(json.dumps(left))
    done = algorun("shell", str(tmp_path), cwd=tmp_path)
    assert done.code == 64
    assert "algo-1 is not held any more" in done.err


@pytest.mark.parametrize("value", ["0", "-1", "30m", "nan"])
def test_a_time_that_is_none_is_one_error(value, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    done = algorun("simulate", "-j", "1x1", "train.py", "well", cwd=tmp_path, ALGORUN_HOLD_ON_FAILURE_S=value)
    assert done.code == 64
    assert f"ALGORUN_HOLD_ON_FAILURE_S: '{value}' is not a positive number of seconds" in done.text
