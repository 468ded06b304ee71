"""Ranks that hang, with the whole launcher: who is named, what is kept, and what comes after."""

from __future__ import annotations

import re
from functools import partial

import pytest

from tests.conftest import algorun, needs_mpi
from tests.launcher.inside.rank_processes import write_light_torch

from .running import PROGRAMS

HANGING = str(PROGRAMS / "hanging.py")
LIMIT = {"ALGORUN_HANG_S": "4"}


def simulate(*words, folder, marker, engine="native", slots=1, **environ):
    return algorun(
        "simulate", "-j", f"2x{slots}", "--engine", engine, *map(str, words), cwd=folder, ALGORUN_TEST=marker, **LIMIT | environ
    )  # fmt: skip


def hanging(engine, slots, folder, marker):
    return simulate(HANGING, slots, folder=folder, marker=marker, engine=engine, slots=slots)


# What the supervisor does is the same under all engines.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("begun", "slots", "others"),
    [
        pytest.param(partial(hanging, "native", 1), 1, "1 other waits", id="native-1"),
        pytest.param(partial(hanging, "torchrun", 1), 1, "1 other waits", id="torchrun-1"),
        pytest.param(partial(hanging, "mpirun", 1), 1, "1 other waits", id="mpirun-1", marks=needs_mpi),
    ],
    indirect=["begun"],
)
def test_a_sleeping_rank_is_named_with_its_line_on_every_host(begun, slots, others):
    done = begun
    assert done.code == 67, done.text
    (failure,) = {done.failure(host) for host in ("algo-1", "algo-2")}
    named = rf"hang: rank {slots} on algo-2, exit 67, attempt 1, step 7: no step for \d+ s after step 7: "
    assert re.match(named, failure)
    assert f"at hanging.py:16: time.sleep(1000) while {others} in backward (" in failure
    assert failure.rstrip().endswith("hint: the stacks of all ranks are in output/data, stacks-rank-*.txt")
    for rank, host in enumerate(["algo-1"] * slots + ["algo-2"] * slots):
        kept = (done.folder / host / "output" / "data" / f"stacks-rank-{rank:05d}.txt").read_text()
        assert kept.startswith(f"rank {rank} on {host}, step 7\n")
        assert "hanging.py" in kept


# Two ranks that wait for each other in every step, as in a collective, without a torch that takes seconds to load.
WAITING = """
import os
import signal
import sys
import time
from pathlib import Path
from torch.optim.optimizer import step

attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], int(os.environ["RANK"])
for number in range(20):
    if number == 7 and rank == 1 and attempt == "0":
        if sys.argv[1] == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1000)
    Path(f"{attempt}-{rank}-{number}").touch()
    while not Path(f"{attempt}-{1 - rank}-{number}").exists():
        time.sleep(0.01)
    step()
print("trained", flush=True)
"""


def waiting(folder, marker, how, *options):
    """Runs the script WAITING."""
    write_light_torch(folder)
    (folder / "waiting.py").write_text(WAITING)
    return simulate(*options, "waiting.py", how, folder=folder, marker=marker)


def frozen(folder, marker):
    return waiting(folder, marker, "freeze")


@pytest.mark.parametrize("begun", [frozen], indirect=True)
def test_a_frozen_rank_is_named(begun):
    assert begun.code == 67, begun.text
    assert "hang: rank 1 on algo-2, exit 67, attempt 1, step 7: " in begun.err
    assert "the process does not answer (stopped, or held in the kernel)" in begun.err


def restarted(folder, marker):
    return waiting(folder, marker, "sleep", "--restarts", 1)


@pytest.mark.parametrize("begun", [restarted], indirect=True)
def test_a_hang_is_followed_by_another_attempt(begun):
    assert begun.code == 0, begun.text
    assert begun.last == "ok nnodes=2 world_size=2 restarts=1"
    assert begun.out.count("trained") == 2


def silent(folder, marker):
    (folder / "silent.sh").write_text("sleep 1000\n")
    return simulate("silent.sh", folder=folder, marker=marker, slots=2, ALGORUN_HANG_S="2")


@pytest.mark.parametrize("begun", [silent], indirect=True)
def test_a_shell_that_sleeps_is_named_with_the_program_that_it_waits_for(begun):
    assert begun.code == 67, begun.text
    (failure,) = {begun.failure(host) for host in ("algo-1", "algo-2")}
    named = r"hang: rank 0 on algo-1, exit 67, attempt 1: no sign of progress for \d+ s: a process whose stack cannot be read \(sleep, S"
    assert re.match(named, failure)


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


def evaluating(call, batches, folder, marker):
    write_light_torch(folder)
    (folder / "evaluate.py").write_text(EVALUATION.format(call=call, batches=batches))
    return simulate("evaluate.py", folder=folder, marker=marker, ALGORUN_HANG_S="3")


@pytest.mark.parametrize(
    ("begun", "code"),
    [(partial(evaluating, "algorun.should_stop()", 50), 0), (partial(evaluating, "pass", 300), 67)],
    ids=["should_stop", "silent"],
    indirect=["begun"],
)
def test_should_stop_is_a_sign_of_life_where_no_steps_are_made(begun, code):
    assert begun.code == code, begun.text


# Rank 1 works alone while rank 0 waits for it, as in a barrier of torch.
ALONE = """
import os
import time
import algorun
from torch.optim.optimizer import step

WAIT = "import time\\ndef barrier(over):\\n    while not over():\\n        time.sleep(0.1)\\n"
exec(compile(WAIT, "/torch/distributed/distributed_c10d.py", "exec"))

def evaluate():
    for batch in range(100):
        time.sleep(0.1)
        algorun.progress()
    {then}

step()
if os.environ["RANK"] == "1":
    evaluate()
    open({over!r}, "w").close()
barrier(lambda: os.path.exists({over!r}))
print("evaluated", flush=True)
"""


def working_alone(then, folder, marker):
    write_light_torch(folder)
    (folder / "alone.py").write_text(ALONE.format(then=then, over=str(folder / "over")))
    return simulate("alone.py", folder=folder, marker=marker, ALGORUN_HANG_S="3")


@pytest.mark.parametrize("begun", [partial(working_alone, "pass")], indirect=True)
def test_a_rank_that_works_alone_is_no_hang(begun):
    assert begun.code == 0, begun.text
    assert begun.out.count("evaluated") == 2


@pytest.mark.parametrize("begun", [partial(working_alone, "time.sleep(1000)")], indirect=True)
def test_a_rank_that_worked_alone_and_hangs_is_named(begun):
    assert begun.code == 67, begun.text
    assert "hang: rank 1 on algo-2, exit 67, attempt 1, step 1: no step for " in begun.text
    assert "evaluate at alone.py:14: time.sleep(1000) while 1 other waits in barrier" in begun.text


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


def timed_out(folder, marker):
    write_light_torch(folder)
    (folder / "train.py").write_text(WATCHDOG)
    return algorun(
        "simulate", "-j", "2x1", "train.py", cwd=folder, ALGORUN_TEST=marker, ALGORUN_BLAME_S="0.1",
        PYTHONFAULTHANDLER="1",  # its dump of five stacks follows these words
    )  # fmt: skip


@pytest.mark.parametrize("begun", [timed_out], indirect=True)
def test_a_time_out_of_nccl_names_the_rank_that_was_waited_for(begun):
    done = begun
    assert done.code == 67, done.text
    (failure,) = {done.failure(host) for host in ("algo-1", "algo-2")}
    lines = failure.splitlines()
    assert lines[0] == (
        "hang: rank 1 on algo-2, exit 67, attempt 1, step 3: "
        "loads at train.py:12: time.sleep(1000) while rank 0 on algo-1 timed out"
    )
    assert lines[-1] == "hint: the stacks of the ranks that still lived are in output/data, stacks-rank-*.txt"
    whole = (done.folder / "algo-1" / "output" / "data" / "failure-full.txt").read_text()
    told = "then: signal: rank 0 on algo-1, exit 134 (SIGABRT), attempt 1, step 3: Watchdog caught collective operation timeout"
    assert told in whole


def loading(context, folder, marker):
    """A worker of the DataLoader of rank 0 hangs; rank 1 waits in its backward pass."""
    return simulate(PROGRAMS / "loading.py", 2, context, folder=folder, marker=marker, ALGORUN_HANG_S="6")


# torch's workers can be asked where they are if they were not forked. Of forked ones the line that waits for them is known.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("begun", "named"),
    [
        (partial(loading, "fork"), r"_try_get_data \(dataloader.py:\d+\), called at loading.py:26 in main"),
        (partial(loading, "spawn"), r"__getitem__ at loading.py:15: time.sleep\(1000\)"),
        (partial(loading, "forkserver"), r"__getitem__ at loading.py:15: time.sleep\(1000\)"),
    ],
    indirect=["begun"],
    ids=["fork", "spawn", "forkserver"],
)
def test_a_data_loader_that_hangs_on_one_rank_is_named_with_its_line(begun, named):
    assert begun.code == 67, begun.text
    (failure,) = {begun.failure(host).splitlines()[0] for host in ("algo-1", "algo-2")}
    assert re.match(
        rf"hang: rank 0 on algo-1, exit 67, attempt 1, step \d+: no step for \d+ s after step \d+: {named} while 1 other waits",
        failure,
    ), failure
