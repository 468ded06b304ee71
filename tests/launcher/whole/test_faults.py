"""Ranks and hosts that come to grief under every engine: one root cause everywhere, in time, and nothing left."""

from __future__ import annotations

import json
import os
import re
import time

import pytest

from tests.conftest import ENGINES, FAILS_ALONE, ours, under

from .running import PROGRAMS, Running, simulate

BOUND_S = 5.0  # from a fault until every host has left


FAULTS = {
    "raise": (1, r"exception: rank 3 on algo-2, exit 1, attempt 1: ParserError: bad record 17"),
    "exit7": (7, r"exit: rank 3 on algo-2, exit 7, attempt 1: last words"),
    "SIGKILL": (137, r"signal: rank 3 on algo-2, exit 137 \(SIGKILL\), attempt 1: not sent by the launcher"),
    "SIGSEGV": (139, r"signal: rank 3 on algo-2, exit 139 \(SIGSEGV\)"),
    "abort": (134, r"signal: rank 3 on algo-2, exit 134 \(SIGABRT\)"),
    "destructor": (1, r"exception: rank 3 on algo-2, exit 1, attempt 1: ParserError: the report must not wait"),
}


# What the supervisor does is the same under all engines.
@pytest.mark.slow(but=["raise-native", "SIGKILL-native"])
@pytest.mark.usefixtures("nothing_beside")
# The verdict is the supervisor's under every engine: each fault, and each engine with several.
@pytest.mark.parametrize(
    ("mode", "engine"),
    under(
        *("raise native", "raise torchrun", "raise mpirun", "exit7 mpirun", "SIGKILL native", "SIGKILL mpirun"),
        *("SIGSEGV torchrun", "abort native", "destructor native", "destructor torchrun"),
    ),
)
def test_a_failing_rank_ends_all_hosts_with_one_root_cause(mode, engine, tmp_path, nothing_left):
    code, first_line = FAULTS[mode]
    job = Running(engine, PROGRAMS / "faulty.py", mode, folder=tmp_path, marker=nothing_left)
    job.wait_for("up ", 4)
    started = time.monotonic()
    assert job.end() == code, job.log.read_text()
    assert time.monotonic() - started < BOUND_S + 0.5  # the program waits half a second before its fault
    texts = {job.failure(host) for host in ("algo-1", "algo-2")}
    assert len(texts) == 1
    text = texts.pop()
    assert re.match(first_line, text), text
    if mode == "raise":
        assert "in deep" in text
        assert "second line algo-2" in text
    last = job.log.read_text().strip().splitlines()[-1]
    assert last.startswith(f"failed nnodes=2 world_size=4 code={code} ")


def test_a_failure_carries_its_hosts_hint_to_every_host(tmp_path, nothing_left):
    script = tmp_path / "train.py"
    script.write_text("import os, time\nif os.environ['RANK'] == '3':\n    import no_such_module\ntime.sleep(60)\n")
    done = simulate("native", script, folder=tmp_path, marker=nothing_left, **FAILS_ALONE)
    assert done.code == 1, done.text
    texts = [done.failure(host).splitlines() for host in ("algo-1", "algo-2")]
    assert texts[0] == texts[1]
    assert texts[0][0].endswith("ModuleNotFoundError: No module named 'no_such_module' (at train.py:3)")
    assert texts[0][-1].startswith("hint: name its package in requirements.txt")


def test_an_exception_that_a_rank_survives_is_no_failure(tmp_path, nothing_left):
    done = simulate("native", PROGRAMS / "faulty.py", "child", folder=tmp_path, marker=nothing_left)
    assert done.code == 0, done.text
    assert "survived" in done.out


def test_a_simulation_that_is_killed_leaves_no_host_behind(tmp_path, nothing_left):
    job = Running("native", PROGRAMS / "faulty.py", "stop", folder=tmp_path, marker=nothing_left)
    job.wait_for("] ready ", 4)
    job.process.kill()
    job.process.wait(10)
    deadline = time.monotonic() + 15
    while ours(nothing_left) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ours(nothing_left) == []
    result = json.loads((tmp_path / "algorun-simulate" / "algo-1" / "output" / "data" / "result.json").read_text())
    assert result["kind"] == "stopped"  # its ranks were told, and saved


@pytest.mark.slow(but=["algo-1-native", "algo-2-mpirun"])
@pytest.mark.usefixtures("nothing_beside")
@pytest.mark.parametrize(
    ("killed", "engine"), under("algo-1 native", "algo-1 torchrun", "algo-2 native", "algo-2 mpirun")
)
def test_a_host_whose_supervisor_is_killed(killed, engine, tmp_path, nothing_left):
    survivor = "algo-2" if killed == "algo-1" else "algo-1"
    job = Running(engine, PROGRAMS / "faulty.py", "sleep", folder=tmp_path, marker=nothing_left)
    job.wait_for("up ", 4)
    supervisor = job.supervisor(killed)
    started = time.monotonic()
    supervisor.kill()
    assert job.end() == 66, job.log.read_text()
    assert time.monotonic() - started < BOUND_S
    assert job.failure(survivor).startswith(f"lost: {killed}, exit 66: ")


@pytest.mark.slow(but=["native"])
@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_of_the_launcher_stays_in_the_temporary_folder(engine, tmp_path, nothing_left):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    for mode, kill in (("exit7", False), ("sleep", True)):
        job = Running(
            engine, PROGRAMS / "faulty.py", mode, folder=tmp_path, marker=nothing_left, TMPDIR=str(temporary),
        )  # fmt: skip
        job.wait_for("up ", 4)
        if kill:
            job.supervisor("algo-1").kill()
        job.end()
        deadline = time.monotonic() + 30
        while os.listdir(temporary) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert os.listdir(temporary) == []
