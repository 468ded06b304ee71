"""The wall clock of one host jumps, as when it is set by the network: nobody counts seconds by it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time

import pytest

from tests.launcher.whole.running import PROGRAMS

from .supervisors import by_hand

JUMPS_S = (3600, -7200, 86400, 0)  # away from the real time
STEPS = 250

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc: the clock is moved by a library in C")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    built = tmp_path_factory.mktemp("clock") / "wall_clock.so"
    source = str(PROGRAMS / "wall_clock.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(built), source], check=True, timeout=60)
    return built


@pytest.mark.slow
@pytest.mark.parametrize("moved", ["algo-1", "algo-2"])
def test_a_clock_that_is_set_changes_no_verdict_no_second_and_no_order(moved, library, tmp_path, nothing_left):
    clock = tmp_path / "clock"

    def move(seconds):
        with clock.open("r+b") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))

    def jump(_port):
        for seconds in JUMPS_S:
            time.sleep(1)
            move(seconds)

    clock.write_bytes(bytes(8))
    preloaded = ("env", f"LD_PRELOAD={library}", f"WALL_CLOCK={clock}")
    program = [PROGRAMS / "stepping.py", STEPS]
    before = (preloaded, ()) if moved == "algo-1" else ((), preloaded)
    codes, outs, seconds = by_hand(
        tmp_path,
        nothing_left,
        [program, program],
        before=before,
        meanwhile=jump,
        ALGORUN_SLOTS="1",
        ALGORUN_HEARTBEAT_S="1",
        ALGORUN_TIMES_S="1",
    )
    print(outs)
    assert codes == [0, 0], outs
    for host, text in outs.items():
        assert "no sign of life" not in text
        told = re.findall(r"^algorun: time of algo-\d: ([\d.]+) s", text, re.MULTILINE)  # by the leader
        assert [float(each) < seconds + 1 for each in told] == [True] * (host == "algo-1")
        for name in ("host_figures", "rank_times"):
            lines = (tmp_path / host / "output" / "data" / f"{name}-{host}.jsonl").read_text().splitlines()
            times = [record["time"] for record in map(json.loads, lines) if "time" in record]
            assert len(times) > 1, (name, lines)
            assert times == sorted(times)
            assert times[-1] - times[0] < seconds + 1
