"""algorun.should_stop(): one answer on all ranks at the same step, under algorun and without it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import clean_environ, needs_mpi
from tests.launcher.whole.running import Running
from tests.train.training_runs import Ranks

from .rank_processes import without_gloo

PROGRAM = Path(__file__).parents[1] / "programs" / "stopping.py"
LIMIT_S = 90
CASES = [
    pytest.param("native", "torch", 1),
    pytest.param("mpirun", "torch", 1, marks=needs_mpi),
    pytest.param("mpirun", "mpi", 2, marks=needs_mpi),
]


def saved(text):
    """The step after which each rank saved."""
    return {int(rank): int(step) for rank, step in re.findall(r"saved (\d+) after step (\d+)", text)}


# What the supervisor does is the same under all engines; the part tools runs mpirun. `make test` has two ranks of one host, and stops
# of simulations whose ranks need no torch: whole/test_stops.py.
@pytest.mark.slow
@pytest.mark.parametrize(("engine", "mode", "slots"), CASES)
def test_a_stop_of_a_simulation_is_saved_at_the_same_step_by_all(engine, mode, slots, tmp_path, nothing_left):
    job = Running(engine, PROGRAM, mode, folder=tmp_path, marker=nothing_left, layout=f"2x{slots}")
    job.wait_for("up ", 2 * slots, timeout=LIMIT_S)
    job.supervisor("algo-2").send_signal(signal.SIGTERM)
    assert job.end() == 0, job.log.read_text()
    steps = saved(job.log.read_text())
    assert sorted(steps) == list(range(2 * slots))
    assert len(set(steps.values())) == 1


@pytest.mark.parametrize("mode", ["torch", "default-group"])
def test_without_a_launcher_one_rank_s_wish_stops_both(mode, tmp_path):
    with Ranks(tmp_path, 1, 2, [mode], str(PROGRAM), STOP_RANK="1") as ranks:
        assert ranks.codes() == [0, 0], ranks.text(0) + ranks.text(1)
    steps = saved(ranks.text(0) + ranks.text(1))
    assert steps[0] == steps[1] >= 40


def run(code: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, env=clean_environ(), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    done.stdout = without_gloo(done.stdout)
    return done


KILL = "import os, signal\nimport algorun\nstop = lambda: os.kill(os.getpid(), signal.SIGTERM)\n"


def test_an_import_changes_and_costs_nothing():
    code = "import sys; before = set(sys.modules); import algorun; print(sorted(set(sys.modules) - before))"
    assert run(code).stdout == "['__future__', 'algorun', 'algorun.common']\n"  # the last one holds the version
    assert run(KILL + "stop()").returncode == -signal.SIGTERM


def test_a_lone_process_stops_by_its_flag_and_stays_stopped():
    done = run(KILL + "print(algorun.should_stop())\nstop()\nprint(algorun.should_stop(), algorun.should_stop())")
    assert done.stdout == "False\nTrue True\n", done.stderr


def test_a_handler_set_before_is_called_as_well_and_one_set_later_stands_alone():
    mine = "signal.signal(signal.SIGTERM, lambda number, frame: print('mine', number))\n"
    ask = "print(algorun.should_stop())\n"
    assert run(KILL + mine + ask + "stop()\n" + ask).stdout == "False\nmine 15\nTrue\n"
    assert run(KILL + ask + mine + "stop()\n" + ask).stdout == "False\nmine 15\nFalse\n"


def test_a_forked_child_still_ends_by_sigterm():
    code = KILL + (
        "import multiprocessing, time\nalgorun.should_stop()\n"
        "child = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))\nchild.start()\n"
        "child.terminate()\nchild.join(30)\nprint(child.exitcode)\nstop()\nprint(algorun.should_stop())\n"
    )
    assert run(code).stdout == "-15\nTrue\n"


def test_another_thread_may_ask_but_does_not_take_the_signal():
    code = KILL + (
        "import threading\nthread = threading.Thread(target=algorun.should_stop)\nthread.start()\nthread.join()\n"
        "print('asked', flush=True)\nstop()\n"
    )
    done = run(code)
    assert (done.stdout, done.returncode) == ("asked\n", -signal.SIGTERM), done.stderr


@pytest.mark.slow
def test_peers_that_come_later_are_found():
    """A script may ask before it joins the others."""
    code = (
        "import algorun, sys\nfrom algorun.inside import peers\nprint(algorun.should_stop())\nimport torch.distributed as dist\n"
        "print(peers.find(None))\ndist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "print(peers.find(None))\nfound = peers.TorchPeers(dist.group.WORLD)\nprint(found.largest([1.0, 2.5]))\n"
        "print(peers.find(found) is found)\n"
    )
    assert run(code).stdout == "False\nNone\nNone\n[1.0, 2.5]\nTrue\n"


# What holds at the very end of an interpreter whose group nobody else has ended: threads of Gloo, the group itself.
AT_THE_END = """
import atexit, os
def gloos():  # torch 2.10 gives them no names
    return len(os.listdir("/proc/self/task")) - before
atexit.register(lambda: print("threads", gloos()))
import torch.distributed as dist
before = len(os.listdir("/proc/self/task"))
from algorun.inside import peers
class Last:
    def __del__(self, still=dist.is_initialized):
        print("a group", still())
last = Last()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""
EXCHANGE = """
found = peers.find(None) or peers.TorchPeers(dist.group.WORLD)
found.largest([1.0])
print("threads", gloos() > 0)
"""


# With the launcher: test_rank_shim.py.
@pytest.mark.slow
def test_without_a_launcher_gloo_is_ended_before_the_interpreter_is():
    """A group that anybody holds keeps its threads, whoever has destroyed it."""
    assert "a group True\n" in run(AT_THE_END).stdout  # as it is without us
    done = run(AT_THE_END + EXCHANGE)
    assert done.stdout == "threads True\nthreads 0\na group False\n", done.stderr


@pytest.mark.slow
def test_no_thread_of_gloo_is_left_where_the_script_destroys_its_group():
    done = run(AT_THE_END + EXCHANGE + "dist.destroy_process_group()\n")
    assert done.stdout == "threads True\nthreads 0\na group False\n", done.stderr


def test_a_call_is_cheap_where_nobody_else_is():
    import algorun.inside.common_stop
    from algorun.inside.stop_flag import StopFlag

    flag = StopFlag()
    flag.installed = True  # this process keeps its own handler
    common = algorun.inside.common_stop.CommonStop(flag)
    best = min(_seconds(common.poll) for _ in range(5))
    assert best < 50e-6


def _seconds(call, times=2000):
    started = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - started) / times
