"""algorun.progress() in a rank, below one, and without a launcher."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.conftest import clean_environ

from .rank_processes import USER, ended, line

REPORT = "import algorun\nalgorun.progress()\nprint('reported', flush=True)\n"


def test_a_report_is_in_the_rank_s_record(light):
    begun = time.monotonic()
    ended(light.start(REPORT))
    steps = light.board.read(0)
    assert begun < steps.progress_at < time.monotonic()
    assert (steps.count, steps.last_at) == (0, 0.0), "a report is no step"


def test_a_report_between_steps_is_a_sign_of_life(light):
    process = light.start(USER + "step()\nprint('stepped', flush=True)\ninput()\n" + REPORT + "input()\n")
    line(process, "stepped")
    before = light.board.read(0)
    process.stdin.write("\n")
    process.stdin.flush()
    line(process, "reported")
    after = light.board.read(0)
    assert after.last_at > before.last_at
    assert (after.count, after.step_at) == (1, before.step_at)


def test_any_process_of_a_rank_may_report(light):
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {REPORT!r}], check=True)\n"
    ended(light.start(code))
    assert light.board.read(0).progress_at > 0


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"ALGORUN_RUN_DIR": "/nowhere", "ALGORUN_LOCAL_RANK": "0"},
        {"ALGORUN_RUN_DIR": "/tmp", "ALGORUN_LOCAL_RANK": "x"},
        {"ALGORUN_LOCAL_RANK": "0"},
    ],
)
def test_without_a_record_a_report_does_nothing(environ):
    done = subprocess.run(
        [sys.executable, "-c", REPORT], env=clean_environ(**environ), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "reported\n"), done.stderr


def test_a_local_rank_beyond_the_records_does_nothing(light):
    code = "import os\nos.environ['ALGORUN_LOCAL_RANK'] = '700'\n"
    ended(light.start(code + REPORT))
    assert light.board.read(0).progress_at == 0.0


def test_to_import_algorun_costs_nothing_until_the_first_report():
    code = "import sys\nbefore = set(sys.modules)\nimport algorun\nprint(sorted(m for m in set(sys.modules) - before if 'algorun' not in m))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean_environ())
    assert done.stdout == "['__future__']\n"
