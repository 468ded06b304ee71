"""A rank that leaves with 0 while the others need it, under every engine: it is named, and not a peer that missed it."""

from __future__ import annotations

import re

import pytest

from tests.conftest import under
from tests.launcher.inside.rank_processes import write_light_torch

from .running import PROGRAMS, simulate

LEAVING = PROGRAMS / "leaving.py"
TRAINED = r"left with 0 after step 20 while 3 ranks still trained, attempt 1: rank [012] on algo-[12]"
CASES = {
    "collective": (1, rf"left: rank 3 on algo-2 {TRAINED}, exit 1: RuntimeError: .*(reset|closed) by peer"),
    "return": (1, rf"left: rank 3 on algo-2 {TRAINED}, exit 1: RuntimeError: .*(reset|closed) by peer"),
    "quiet": (67, rf"hang: rank 3 on algo-2 {TRAINED}: no step for \d+ s after step 20: .*2 others wait in wait \("),
    "early": (
        1,
        r"left: rank 3 on algo-2 left with 0 while 3 ranks still ran, attempt 1: rank [012] on algo-[12], exit 1: "
        # In the words of the store's own rank or of one that asked it, whichever began to wait first.
        r"torch\.distributed\.DistStoreError: (wait timeout after 3000ms|Timed out after 4 seconds waiting for clients)",
    ),
}


# Four ranks load torch for one line; launcher/control/test_hub_left.py has all cases of the rules that choose it.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "engine"), under("collective native", "return torchrun", "quiet mpirun", "early native")
)
def test_the_rank_that_left_is_named_on_every_host(mode, engine, tmp_path, nothing_left):
    code, first_line = CASES[mode]
    done = simulate(engine, LEAVING, mode, folder=tmp_path, marker=nothing_left, ALGORUN_HANG_S="5")
    assert done.code == code, done.text
    (failure,) = {done.failure(host) for host in ("algo-1", "algo-2")}
    assert re.match(first_line, failure), failure


@pytest.mark.slow
def test_all_ranks_that_ran_out_of_data_are_counted(tmp_path, nothing_left):
    done = simulate("native", LEAVING, "uneven", folder=tmp_path, marker=nothing_left)
    assert done.code == 1, done.text
    named = r"left: rank [23] on algo-2 left with 0 after step 20(, as did 1 other,)? while [23] ranks still trained"
    assert re.match(named, done.failure("algo-1")), done.failure("algo-1")


ALONE = """
import os
import time
from torch.optim.optimizer import step

for number in range(1, 61):
    step()
    if number == 20 and os.environ["RANK"] == "3":
        os._exit(0)
    time.sleep(0.01)
time.sleep(2)  # outlasts the leaver's blame window
print("trained", flush=True)
"""


def test_ranks_that_never_met_end_on_their_own(tmp_path, nothing_left):
    write_light_torch(tmp_path)
    (tmp_path / "alone.py").write_text(ALONE)
    done = simulate("native", "alone.py", folder=tmp_path, marker=nothing_left)
    assert (done.code, done.last) == (0, "ok nnodes=2 world_size=4"), done.text
    assert done.out.count("trained") == 3


@pytest.mark.slow
def test_ranks_that_end_on_their_own_are_fine(tmp_path, nothing_left):
    done = simulate("native", LEAVING, "work", folder=tmp_path, marker=nothing_left)
    assert (done.code, done.last) == (0, "ok nnodes=2 world_size=4"), done.text


@pytest.mark.slow
def test_another_attempt_may_follow(tmp_path, nothing_left):
    done = simulate("native", "--restarts", "1", LEAVING, "collective", folder=tmp_path, marker=nothing_left)
    assert (done.code, done.last) == (0, "ok nnodes=2 world_size=4 restarts=1"), done.text
    assert "left: rank 3 on algo-2 left with 0 after step 20 while 3 ranks still trained, attempt 1/2: " in done.text
