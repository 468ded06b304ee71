"""Stops by SIGTERM and Ctrl-C under every engine: all ranks save, and those that ignore it are ended."""

from __future__ import annotations

import signal
import time

import pytest

from tests.conftest import ENGINES, commands, needs_mpi

from .running import PROGRAMS, Running

BOUND_S = 5.0  # from a second Ctrl-C until every host has left


# What the supervisor does is the same under all engines.
@pytest.mark.slow(but=["native"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_stop_on_one_host_lets_every_rank_save(engine, tmp_path, nothing_left):
    job = Running(engine, PROGRAMS / "faulty.py", "stop", folder=tmp_path, marker=nothing_left)
    job.wait_for("] ready ", 4)
    job.supervisor("algo-2").send_signal(signal.SIGTERM)
    assert job.end() == 0, job.log.read_text()
    text = job.log.read_text()
    for rank in range(4):
        assert f"saved {rank}" in text
    assert text.strip().splitlines()[-1] == "stopped nnodes=2 world_size=4 why=SIGTERM on algo-2"
    assert not (tmp_path / "algorun-simulate" / "algo-1" / "output" / "failure").exists()


def test_ctrl_c_stops_a_simulation(tmp_path, nothing_left):
    job = Running("native", PROGRAMS / "faulty.py", "stop", folder=tmp_path, marker=nothing_left)
    job.wait_for("] ready ", 4)
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130, job.log.read_text()
    assert job.log.read_text().count("saved") == 4
    assert job.log.read_text().strip().splitlines()[-1].startswith("stopped nnodes=2 world_size=4 why=SIGINT")


# The same code with another value or at another moment.
@pytest.mark.slow(but=["0.01", "0.1"])
@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.03, 0.1, 0.2])
def test_a_stop_while_the_hosts_start_reaches_all_of_them(delay_s, tmp_path, nothing_left):
    """Also the one that is just being started, and those that do not listen yet."""
    job = Running(
        "native",
        PROGRAMS / "faulty.py",
        "stop",
        folder=tmp_path,
        marker=nothing_left,
        layout="3x1",
        ALGORUN_LEAVE_S="40",
    )
    deadline = time.monotonic() + 30
    while not any("run" in words for words in commands(nothing_left)):
        assert time.monotonic() < deadline
    time.sleep(delay_s)
    begun = time.monotonic()
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 0, job.log.read_text()
    assert time.monotonic() - begun < 30, "a leader that hears nothing of its followers waits for 40 s"
    assert "stopped nnodes=3" in job.log.read_text()


@pytest.mark.parametrize("engine", ["torchrun", pytest.param("mpirun", marks=needs_mpi)])
def test_a_stop_while_the_engine_starts_reaches_the_ranks_it_starts_later(engine, tmp_path, nothing_left):
    """torchrun and mpirun take seconds until their ranks are there; the stop is then seconds old."""
    program = tmp_path / "late.py"
    program.write_text("import signal, time\nsignal.sigwait([signal.SIGTERM])\n")
    job = Running(engine, program, folder=tmp_path, marker=nothing_left, layout="1x2", ALGORUN_GRACE_S="300")
    job.wait_for("leader", 1)
    job.supervisor("algo-1").send_signal(signal.SIGTERM)
    assert job.end() == 0, job.log.read_text()  # long before the grace has passed
    assert "outlasted the grace" not in job.log.read_text()


@pytest.mark.usefixtures("nothing_beside")
def test_ranks_that_ignore_a_stop_are_killed_at_the_grace(tmp_path, nothing_left):
    job = Running(
        "native", PROGRAMS / "faulty.py", "ignore", folder=tmp_path, marker=nothing_left, ALGORUN_GRACE_S="1.5"
    )
    job.wait_for("] ready ", 4)
    started = time.monotonic()
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 0, job.log.read_text()
    assert 1.4 < time.monotonic() - started < 1.5 + 2
    assert "ranks that outlasted the grace of 1.5 s are killed" in job.log.read_text()


@pytest.mark.usefixtures("nothing_beside")
def test_a_second_ctrl_c_does_not_wait_for_the_grace(tmp_path, nothing_left):
    job = Running("native", PROGRAMS / "faulty.py", "ignore", folder=tmp_path, marker=nothing_left)
    job.wait_for("] ready ", 4)
    job.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert job.process.poll() is None
    started = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130, job.log.read_text()
    assert time.monotonic() - started < BOUND_S
    assert job.log.read_text().count("interrupted again") == 2  # once a host
