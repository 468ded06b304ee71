"""Ranks that hang, with the whole launcher: who is named, what is kept, and what comes after."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ENGINES, algorun

from .running import PROGRAMS

HANGING = str(PROGRAMS / "hanging.py")
LIMIT = {"ALGORUN_HANG_S": "4"}


def simulate(*words, folder, marker, engine="native", **environ):
    return algorun(
        "simulate", "-j", "2x2", "--engine", engine, *map(str, words), cwd=folder, ALGORUN_TEST=marker, **LIMIT, **environ
    )  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_a_sleeping_rank_is_named_with_its_line_on_every_host(engine, tmp_path, nothing_left):
    done = simulate(HANGING, 2, "sleep", folder=tmp_path, marker=nothing_left, engine=engine)
    assert done.code == 67, done.text
    (failure,) = {done.failure(host) for host in ("algo-1", "algo-2")}
    assert re.match(r"hang: rank 2 on algo-2, exit 67, attempt 1, step 7: no step for \d+ s after step 7: ", failure)
    assert "at hanging.py:19: time.sleep(1000) while 3 others wait in backward (" in failure
    assert failure.rstrip().endswith("hint: the stacks of all ranks are in output/data, stacks-rank-*.txt")
    for rank, host in enumerate(["algo-1", "algo-1", "algo-2", "algo-2"]):
        kept = (done.folder / host / "output" / "data" / f"stacks-rank-{rank:05d}.txt").read_text()
        assert kept.startswith(f"rank {rank} on {host}, step 7\n")
        assert "hanging.py" in kept


def test_a_frozen_rank_is_named(tmp_path, nothing_left):
    done = simulate(HANGING, 1, "freeze", folder=tmp_path, marker=nothing_left)
    assert done.code == 67, done.text
    assert "hang: rank 1 on algo-1, exit 67, attempt 1, step 7: " in done.err
    assert "the process does not answer (stopped, or held in the kernel)" in done.err


def test_a_hang_is_followed_by_another_attempt(tmp_path, nothing_left):
    done = simulate("--restarts", 1, HANGING, 3, "sleep", folder=tmp_path, marker=nothing_left)
    assert done.code == 0, done.text
    assert done.last == "ok nnodes=2 world_size=4 restarts=1"
    assert done.out.count("trained") == 4


def test_a_rank_without_steps_is_only_warned_of(tmp_path, nothing_left):
    (tmp_path / "silent.sh").write_text("sleep 6\n")
    done = simulate("silent.sh", folder=tmp_path, marker=nothing_left)
    assert done.code == 0, done.text
    assert "warning: rank 2, 3: no output for 4 s, and no steps of an optimizer to go by" in done.out
    assert done.out.count("no output for 4 s") == 2, "once on each host"


def test_off_means_never(tmp_path, nothing_left):
    (tmp_path / "quick.sh").write_text("true\n")
    assert simulate("quick.sh", folder=tmp_path, marker=nothing_left, ALGORUN_GRACE_S="1").code == 0
    done = algorun("simulate", "-j", "1x1", "quick.sh", cwd=tmp_path, ALGORUN_TEST=nothing_left, ALGORUN_HANG_S="off")
    assert done.code == 0, done.text


EVALUATION = """
import os, time
import algorun, torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
for batch in range(70):
    time.sleep(0.1)
    {call}
print("evaluated", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(("call", "code"), [("algorun.should_stop()", 0), ("pass", 67)])
def test_should_stop_is_a_sign_of_life_where_no_steps_are_made(call, code, tmp_path, nothing_left):
    (tmp_path / "evaluate.py").write_text(EVALUATION.format(call=call))
    done = simulate("evaluate.py", folder=tmp_path, marker=nothing_left)
    assert done.code == code, done.text
