"""Keras with MultiWorkerMirroredStrategy on two hosts, and the ends of such a job."""

from __future__ import annotations

import os
import re

import pytest

from tests.conftest import ENGINES, under
from tests.launcher.whole.running import busy

from . import published
from .conftest import PROGRAMS, RUN_S, STANDING, lose, same_failure

pytestmark = pytest.mark.slow
FRAMEWORK = "tensorflow"
PROGRAM = PROGRAMS / "fit_with_tensorflow.py"
WISH = {"ALGORUN_TF_CONFIG": "1", "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "1"}


@pytest.mark.parametrize("engine", ENGINES)
def test_both_workers_have_the_weight_that_is_computed_by_hand(engine, run):
    done = run(engine, "2x1", PROGRAM, **WISH)
    assert done.code == 0, done.text
    weight = 0.0
    for _ in range(12):  # a batch is 0, 1, 2 and 3, four times each: the mean of their squares is 3.5
        weight += 0.05 * 2 * 3.5 * (3 - weight)
    found = re.findall(r"^\[(\d) \S+\] weight (\S+) of 2 replicas$", done.out, re.M)
    assert sorted(rank for rank, _ in found) == ["0", "1"]
    assert [float(each) for _, each in found] == pytest.approx([weight] * 2, abs=2e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_tutorials_script(engine, run, script):
    """main.py and mnist_setup.py, with scikit-learn's digits: the same loss on both workers, and less in each epoch."""
    main = script(published.KERAS_TUTORIAL, "main.py", "%%writefile main.py")
    script(published.KERAS_TUTORIAL, "mnist_setup.py", "%%writefile mnist_setup.py")
    done = run(engine, "2x1", PROGRAMS / "with_digits.py", "keras", main.name, **WISH)
    assert done.code == 0, done.text
    losses = {rank: re.findall(rf"^\[{rank} \S+\] 70/70 .* \S+/step - loss: (\S+)", done.out, re.M) for rank in "01"}
    assert len(losses["0"]) == 3, done.out
    assert losses["0"] == losses["1"]
    assert float(losses["0"][2]) < float(losses["0"][0])


@pytest.mark.parametrize(("lost", "other"), [("algo-1", "algo-2"), ("algo-2", "algo-1")])
def test_a_lost_host_is_named(lost, other, begin):
    job = begin("2x1", PROGRAM, "stop", 0, **WISH)
    job.wait_for("] fitting", 2, timeout=RUN_S)
    lose(job, lost, other)


@pytest.mark.parametrize(
    ("end", "rank", "code", "says"),
    [
        ("raise", 0, 1, "exception: rank 0 on algo-1, exit 1, attempt 1: ValueError: a bad sample"),
        ("kill", 1, 137, "signal: rank 1 on algo-2, exit 137 (SIGKILL), attempt 1: "),
    ],
)
def test_the_worker_that_fails_is_the_root_cause_on_both_hosts(end, rank, code, says, run):
    done = run("native", "2x1", PROGRAM, end, rank, **WISH)
    assert done.code == code, done.text
    assert same_failure(done).startswith(says)


def test_a_stop_ends_both_workers_after_the_same_epoch(begin):
    job = begin("2x1", PROGRAM, "stop", 0, **WISH)
    job.wait_for("] fitting", 2, timeout=RUN_S)
    job.process.terminate()
    assert job.process.wait(RUN_S) == 0, job.log.read_text()
    epochs = re.findall(r"^\[\d \S+\] stopped after epoch (\d+)$", job.log.read_text(), re.M)
    assert len(epochs) == 2
    assert len(set(epochs)) == 1


@pytest.mark.parametrize(
    ("phase", "engine"),
    under(
        "import native",
        "data native",
        "compile native",
        "collective native",
        "collective torchrun",
        "collective mpirun",
        "end native",
    ),
)
def test_a_rank_that_stands_still_is_named_with_its_line(phase, engine, run):
    done = run(engine, "2x1", STANDING, "tensorflow", phase, ALGORUN_HANG_S="8", **WISH)
    assert done.code == 67, done.text
    assert re.match(
        r"hang: rank 1 on algo-2, exit 67, attempt 1: no sign of progress for \d+ s: stuck at", same_failure(done)
    )


@pytest.mark.parametrize("work", ["compile", "data"])
def test_a_rank_that_works_in_silence_on_a_busy_machine_is_no_hang(work, run):
    """It compiles, or prepares data, for three times the limit; the other rank waits for it. 4 x the cores are asked for."""
    program = (PROGRAMS / "work_in_silence.py", "tensorflow", work, 24)
    with busy(4 * (os.cpu_count() or 1)):
        done = run("native", "2x1", *program, ALGORUN_HANG_S="8", **WISH)
    assert done.code == 0, done.text
    assert done.out.count("] went through") == 2
