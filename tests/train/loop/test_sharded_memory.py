"""What a rank holds at the peak of a step, as torch's memory trackers count it, against the formula of docs/models.md."""

import re
from pathlib import Path

import pytest

from tests.train.training_runs import TRANSFORMERS, Ranks, load_once

load_once(*TRANSFORMERS, "torch.profiler")
PROGRAM = str(Path(__file__).parents[1] / "programs" / "sharded_memory.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Rank 0's bytes by kind, for each number of shards; 1 is plain data parallel."""
    run = Ranks(tmp_path_factory.mktemp("memory"), 1, 4, ["1", "2", "4", "stages"], program=PROGRAM)
    try:
        assert run.codes() == [0, 0, 0, 0], run.text()
    finally:
        run.kill()
    lines = [line for line in run.text().splitlines() if " weights=" in line]
    return {line.split()[0]: {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", line)} for line in lines}


# Trackers of memory make each operation slow; test_sharded_steps.py has the bytes of weights, gradients and moments.
@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 2, 4])
def test_weights_gradients_and_moments_are_divided_by_the_shards(found, shards):
    row = found[str(shards)]
    for kind, times in (("weights", 1), ("gradients", 1), ("moments", 2)):
        assert row[f"held_{kind}"] == pytest.approx(times * row["weights"] / shards, rel=0.01), kind
    if shards > 1:  # the tracker of FSDP2 says the same; it counts the optimizer's numbers of steps too
        assert row["sharded_param"] == row["held_weights"]
        assert row["opt"] == pytest.approx(row["held_moments"], rel=1e-3)


@pytest.mark.slow
def test_a_stage_has_its_share_of_weights_gradients_and_moments(found):
    row = found["stages"]
    assert row["units"] > 3
    for kind, times in (("sharded_param", 1), ("gradients", 1), ("opt", 2)):
        assert row[kind] == pytest.approx(times * row["weights"] / 2, rel=0.01), kind


@pytest.mark.slow
def test_the_peak_of_a_sharded_stage_is_that_of_the_formula(found):
    """Until the last microbatch a rank has the gradients of its whole stage."""
    row = found["stages"]
    expected = 3 * row["weights"] / 2 + row["weights"] + row["saved"] + 4 * row["unit"]
    assert row["sharded_param"] + row["opt"] + row["peak"] == pytest.approx(expected, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("shards", [2, 4])
def test_buffers_of_communication_have_the_size_of_one_unit(found, shards):
    row = found[str(shards)]
    for kind in ("unsharded_param", "all_gather", "reduce_scatter"):
        assert row[kind] == row["unit"]


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 2, 4])
def test_the_peak_is_that_of_the_formula(found, shards):
    row = found[str(shards)]
    whole, unit, saved = row["weights"], row["unit"], row["saved"]
    sharded = 3 * whole / shards + max(saved, whole / shards) + 4 * unit
    expected = sharded if shards > 1 else 4 * whole + saved
    assert row["total"] == pytest.approx(expected, rel=0.1)
