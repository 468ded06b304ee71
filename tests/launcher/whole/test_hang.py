"""Ranks that hang, with the whole launcher: who is named, what is kept, and what comes after."""

from __future__ import annotations

import re

import pytest

from tests.conftest import algorun, needs_mpi
from tests.launcher.inside.rank_processes import write_light_torch

from .running import PROGRAMS

HANGING = str(PROGRAMS / "hanging.py")
LIMIT = {"ALGORUN_HANG_S": "4"}


def simulate(*words, folder, marker, engine="native", slots=1, **environ):
    return algorun(
        "simulate", "-j", f"2x{slots}", "--engine", engine, *map(str, words), cwd=folder, ALGORUN_TEST=marker, **LIMIT, **environ
    )  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "slots", "others"),
    [
        ("native", 2, "3 others wait"),
        ("torchrun", 1, "1 other waits"),
        pytest.param("mpirun", 1, "1 other waits", marks=needs_mpi),
    ],
)
def test_a_sleeping_rank_is_named_with_its_line_on_every_host(engine, slots, others, tmp_path, nothing_left):
    done = simulate(HANGING, slots, "sleep", folder=tmp_path, marker=nothing_left, engine=engine, slots=slots)
    assert done.code == 67, done.text
    (failure,) = {done.failure(host) for host in ("algo-1", "algo-2")}
    named = rf"hang: rank {slots} on algo-2, exit 67, attempt 1, step 7: no step for \d+ s after step 7: "
    assert re.match(named, failure)
    assert f"at hanging.py:19: time.sleep(1000) while {others} in backward (" in failure
    assert failure.rstrip().endswith("hint: the stacks of all ranks are in output/data, stacks-rank-*.txt")
    for rank, host in enumerate(["algo-1"] * slots + ["algo-2"] * slots):
        kept = (done.folder / host / "output" / "data" / f"stacks-rank-{rank:05d}.txt").read_text()
        assert kept.startswith(f"rank {rank} on {host}, step 7\n")
        assert "hanging.py" in kept


def test_a_frozen_rank_is_named(tmp_path, nothing_left):
    done = simulate(HANGING, 1, "freeze", folder=tmp_path, marker=nothing_left)
    assert done.code == 67, done.text
    assert "hang: rank 1 on algo-2, exit 67, attempt 1, step 7: " in done.err
    assert "the process does not answer (stopped, or held in the kernel)" in done.err


def test_a_hang_is_followed_by_another_attempt(tmp_path, nothing_left):
    done = simulate("--restarts", 1, HANGING, 1, "sleep", folder=tmp_path, marker=nothing_left)
    assert done.code == 0, done.text
    assert done.last == "ok nnodes=2 world_size=2 restarts=1"
    assert done.out.count("trained") == 2


def test_a_rank_without_steps_is_only_warned_of(tmp_path, nothing_left):
    (tmp_path / "silent.sh").write_text("sleep 12\n")
    done = simulate("silent.sh", folder=tmp_path, marker=nothing_left, slots=2)
    assert done.code == 0, done.text
    assert "warning: rank 2, 3: no output for 4 s, and no steps of an optimizer to go by" in done.out
    assert done.out.count("no output for 4 s") == 2, "once on each host"


def test_off_means_never(tmp_path, nothing_left):
    (tmp_path / "quick.sh").write_text("true\n")
    assert simulate("quick.sh", folder=tmp_path, marker=nothing_left, ALGORUN_GRACE_S="1").code == 0
    done = algorun("simulate", "-j", "1x1", "quick.sh", cwd=tmp_path, ALGORUN_TEST=nothing_left, ALGORUN_HANG_S="off")
    assert done.code == 0, done.text


EVALUATION = """
import time
import algorun
from torch.optim.optimizer import step

step()
for batch in range({batches}):
    time.sleep(0.1)
    {call}
print("evaluated", flush=True)
"""


@pytest.mark.parametrize(("call", "batches", "code"), [("algorun.should_stop()", 70, 0), ("pass", 300, 67)])
def test_should_stop_is_a_sign_of_life_where_no_steps_are_made(call, batches, code, tmp_path, nothing_left):
    write_light_torch(tmp_path)
    (tmp_path / "evaluate.py").write_text(EVALUATION.format(call=call, batches=batches))
    done = simulate("evaluate.py", folder=tmp_path, marker=nothing_left)
    assert done.code == code, done.text


# Rank 0 of two waits in a collective whose watchdog ends it, with the words of torch 2.10 to 2.13; rank 1 never comes.
WATCHDOG = """
import os
import sys
import threading
import time
from torch.optim.optimizer import step

def deep(n):
    time.sleep(1000) if not n else deep(n - 1)

def loads():
    time.sleep(1000)

for _ in range(3):
    step()
if os.environ["RANK"] == "1":
    loads()
for _ in range(4):
    threading.Thread(target=deep, args=(20,), daemon=True).start()
time.sleep(0.2)
RAN = "WorkNCCL(SeqNum=78, OpType=BROADCAST, NumelIn=80, NumelOut=80, Timeout(ms)=600000) ran for 600096 milliseconds"
print(
    "terminate called after throwing an instance of 'c10::DistBackendError'\\n  what():  [PG ID 0 PG GUID 0(default_pg) "
    "Rank 0] Process group watchdog thread terminated with exception: [Rank 0] Watchdog caught collective operation "
    f"timeout: {RAN} before timing out.",
    file=sys.stderr,
)
os.abort()
"""


def test_a_time_out_of_nccl_names_the_rank_that_was_waited_for(tmp_path, nothing_left):
    write_light_torch(tmp_path)
    (tmp_path / "train.py").write_text(WATCHDOG)
    done = algorun(
        "simulate", "-j", "2x1", "train.py", cwd=tmp_path, ALGORUN_TEST=nothing_left, ALGORUN_BLAME_S="0.1",
        PYTHONFAULTHANDLER="1",  # its dump of five stacks follows these words
    )  # fmt: skip
    assert done.code == 67, done.text
    (failure,) = {done.failure(host) for host in ("algo-1", "algo-2")}
    lines = failure.splitlines()
    assert lines[0] == (
        "hang: rank 1 on algo-2, exit 67, attempt 1, step 3: "
        "loads at train.py:12: time.sleep(1000) while rank 0 on algo-1 timed out"
    )
    assert lines[-1] == "hint: the stacks of the ranks that still lived are in output/data, stacks-rank-*.txt"
    whole = (done.folder / "algo-1" / "output" / "data" / "failure-full.txt").read_text()
    assert "then: signal: rank 0 on algo-1, exit 134 (SIGABRT), attempt 1, step 3: ended by the signal" in whole
