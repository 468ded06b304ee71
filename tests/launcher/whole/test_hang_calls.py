"""Ranks that call different collectives, with the whole launcher: the failure names both calls with their lines."""

from __future__ import annotations

from functools import partial

import pytest

from .running import PROGRAMS
from .test_hang import simulate

MISMATCH = PROGRAMS / "mismatch.py"
OTHERS = "all_reduce [3] Float at mismatch.py:22"


def mismatched(kind, folder, marker):
    return simulate(MISMATCH, kind, folder=folder, marker=marker, slots=2)


@pytest.mark.parametrize(
    ("begun", "named"),
    [
        pytest.param(
            partial(mismatched, "missing"),
            f"rank 2 called barrier at mismatch.py:23, 3 others called {OTHERS} (call 15 of the default group)",
            id="missing",
        ),
        pytest.param(
            partial(mismatched, "order"),
            f"rank 2 called broadcast [3] Float at mismatch.py:16, 3 others called {OTHERS} (call 15 of the default group)",
            id="order",
        ),
        pytest.param(
            partial(mismatched, "shape"),
            f"rank 2 called all_reduce [2] Float at mismatch.py:18, 3 others called {OTHERS} (call 15 of the default group)",
            id="shape",
        ),
        pytest.param(
            partial(mismatched, "subgroup"),
            f"3 others called {OTHERS} (call 15 of the default group), rank 2 did not: its last call is"
            " all_reduce [3] Float at mismatch.py:20 (call 1 of group 1 of ranks 2-3)",
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
