"""Ranks that call different collectives, with the whole launcher: the failure names both calls with their lines."""

from __future__ import annotations

from functools import partial

import pytest

from .running import PROGRAMS
from .test_hang import simulate

MISMATCH = PROGRAMS / "mismatch.py"
OTHERS = "all_reduce [3] Float at mismatch.py:26"


def timed_out(kind, folder, marker):
    """All ranks wait, and after 8 s torch ends them all at once."""
    return simulate(MISMATCH, kind, 8, folder=folder, marker=marker, slots=2, ALGORUN_HANG_S="600")


def mismatched(kind, folder, marker):
    return simulate(MISMATCH, kind, folder=folder, marker=marker, slots=2)


# Which calls differ is decided in launcher/control/test_calls.py; test_hang.py ends a job that hangs.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("begun", "named"),
    [
        pytest.param(
            partial(mismatched, "missing"),
            f"rank 2 called barrier at mismatch.py:27, 3 others called {OTHERS} (call 15 of the default group)",
            id="missing",
        ),
        pytest.param(
            partial(mismatched, "order"),
            f"rank 2 called broadcast [3] Float at mismatch.py:20, 3 others called {OTHERS} (call 15 of the default group)",
            id="order",
        ),
        pytest.param(
            partial(mismatched, "shape"),
            f"rank 2 called all_reduce [2] Float at mismatch.py:22, 3 others called {OTHERS} (call 15 of the default group)",
            id="shape",
        ),
        pytest.param(
            partial(mismatched, "subgroup"),
            f"3 others called {OTHERS} (call 15 of the default group), rank 2 did not: its last call is"
            " all_reduce [3] Float at mismatch.py:24 (call 1 of group 1 of ranks 2-3)",
            id="subgroup",
        ),
    ],
    indirect=["begun"],
)
def test_the_odd_rank_is_named_with_both_calls(begun, named):
    assert begun.code == 67, begun.text
    failure = begun.failure("algo-1")
    assert failure.startswith("hang: rank 2 on algo-2")
    assert named in failure
    kept = (begun.folder / "algo-1" / "output" / "data" / "stacks-rank-00000.txt").read_text()
    assert "last collective calls, the newest last:" in kept


# Decided in launcher/control/test_calls.py.
@pytest.mark.slow
@pytest.mark.parametrize("begun", [pytest.param(partial(timed_out, "shape"), id="shape")], indirect=True)
def test_calls_that_differ_explain_ranks_whose_limit_ends_them_all_at_once(begun):
    assert begun.code == 1, begun.text
    (failure,) = {begun.failure(host) for host in ("algo-1", "algo-2")}
    assert failure.startswith("exception: rank 2 on algo-2")
    assert f"rank 2 called all_reduce [2] Float at mismatch.py:22, 3 others called {OTHERS}" in failure
