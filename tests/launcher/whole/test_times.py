"""The closing table of real jobs: causes add up to the time measured from outside, within 1 %."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.conftest import FAILS_ALONE, algorun, clean_environ, needs_mpi

from .running import PROGRAMS, Running, simulate

STEPPING = PROGRAMS / "stepping.py"
EXIT_S = 0.25  # seconds: Python's own end, after the table; only a short job sees it


def times(folder, host="algo-1"):
    return json.loads((folder / host / "output" / "data" / "result.json").read_text())["times"]


def run(*words, folder, marker, **environ):
    """A job of one host; returns its outcome and its times."""
    done = algorun("run", *map(str, words), cwd=folder, ALGORUN_TEST=marker, SAGEMAKER_BASE_DIR=str(folder), **environ)
    return done, json.loads((folder / "output" / "data" / "result.json").read_text())["times"]


def assert_adds_up(found, seconds):
    assert sum(found["seconds"].values()) == pytest.approx(found["wall_s"], abs=0.02)
    assert found["wall_s"] == pytest.approx(seconds, rel=0.01, abs=EXIT_S)


@pytest.mark.usefixtures("nothing_beside")
def test_a_job_with_steps_says_where_its_time_went(tmp_path, nothing_left):
    done, found = run(STEPPING, 25, folder=tmp_path, marker=nothing_left, ALGORUN_PRICE="36")
    assert done.code == 0, done.text
    assert_adds_up(found, done.seconds)
    assert found["steps"] == 25
    assert found["seconds"]["training"] >= 24 * 0.02
    assert {"launcher", "import", "first_step", "after_steps"} <= set(found["seconds"])
    assert found["goodput"] == pytest.approx(found["seconds"]["training"] / found["wall_s"], abs=1e-3)
    assert found["cost"] == pytest.approx(found["wall_s"] / 100, rel=0.01)
    assert "algorun: time of algo-1" in done.out
    assert "  goodput " in done.out
    assert done.out.splitlines()[-1].startswith("ok "), "the closing line stays the last one"


def test_a_program_without_steps_gets_no_goodput(tmp_path, nothing_left):
    program = tmp_path / "binary.py"
    program.write_text("import sys, time\nsys.stdout.buffer.write(bytes(range(256)) * 9)\ntime.sleep(1)\n")
    environ = clean_environ(ALGORUN_TEST=nothing_left, SAGEMAKER_BASE_DIR=str(tmp_path))
    argv = [sys.executable, "-I", "-m", "algorun", "run", str(program)]
    done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, check=False, timeout=60)
    found = json.loads((tmp_path / "output" / "data" / "result.json").read_text())["times"]
    assert done.returncode == 0
    assert b"goodput" not in done.stdout
    assert found["seconds"]["program"] >= 1
    assert "goodput" not in found
    assert "steps" not in found
    assert "cost" not in found


# What restarts cost is counted in launcher/timing/test_clock.py.
@pytest.mark.slow
@pytest.mark.usefixtures("nothing_beside")
def test_two_restarts_are_counted_as_lost(tmp_path, nothing_left):
    words = (STEPPING, 4, 2)
    done, found = run("--restarts", "2", *words, folder=tmp_path, marker=nothing_left, **FAILS_ALONE)
    assert done.code == 0, done.text
    assert_adds_up(found, done.seconds)
    assert found["lost_steps"] == 8
    assert found["steps"] == 4
    assert found["seconds"]["lost_attempts"] > found["seconds"]["training"]
    assert found["seconds"]["restarts"] > 0


def test_every_host_of_a_stopped_job_writes_its_times(tmp_path, nothing_left):
    job = Running("native", PROGRAMS / "faulty.py", "stop", folder=tmp_path, marker=nothing_left)
    job.wait_for("] ready ", 4)
    job.supervisor("algo-2").send_signal(signal.SIGTERM)
    assert job.end() == 0, job.log.read_text()
    for host in ("algo-1", "algo-2"):
        found = times(tmp_path / "algorun-simulate", host)
        assert {"launcher", "gate", "program", "stopping"} <= set(found["seconds"])


# The table is the launcher's own, whatever the engine.
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torchrun", pytest.param("mpirun", marks=needs_mpi)])
def test_other_engines_have_the_same_rows(engine, tmp_path, nothing_left):
    done = simulate(engine, STEPPING, 10, folder=tmp_path, marker=nothing_left, layout="2x1")
    assert done.code == 0, done.text
    assert all(times(done.folder, host)["steps"] == 10 for host in ("algo-1", "algo-2"))


@pytest.mark.parametrize("price", ["free", "-1", "nan", "1e9"])
def test_a_wrong_price_is_refused(price, tmp_path):
    done = algorun("run", "mpi-basics", cwd=tmp_path, ALGORUN_PRICE=price)
    assert done.code == 64
    assert f"ALGORUN_PRICE: '{price}' is not a price" in done.text
