"""The process groups of a job with stages, replicas and shares: who is in them, how long they wait, and what they cost many ranks."""

import ast
from pathlib import Path

import pytest

from algorun_train.parallel.layout.grid import PLACEMENTS, Grid
from tests.train.training_runs import Ranks, by_itself

PROGRAM = str(Path(__file__).parents[1] / "programs" / "mesh_groups.py")
MANY = Path(__file__).parents[1] / "programs" / "many_groups.py"


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_each_group_has_its_ranks_and_the_jobs_limit(tmp_path, placement):
    with Ranks(tmp_path, 1, 8, [placement], program=PROGRAM) as run:
        assert run.codes() == [0] * 8, run.text(0) + run.text(7)
    grid = Grid(4, 2, placement)
    for rank in range(8):
        found = ast.literal_eval(run.text(rank).splitlines()[0])
        (pipeline,) = (ranks for ranks in grid.pipelines if rank in ranks)
        (copies,) = (ranks for ranks in grid.replicas if rank in ranks)
        place = copies.index(rank)
        wanted = {"pp": list(pipeline), "dp": list(copies), "replica": list(copies[place % 2 :: 2])}
        assert found == {**wanted, "shard": list(copies[place // 2 * 2 :][:2])}
        assert f"index {place % 2} first {place < 2} of (2, 2)" in run.text(rank)
    (with_it,) = (ranks for ranks in grid.replicas if 7 in ranks)
    place = with_it.index(7)
    assert "no sum over shard timed out" in run.text(with_it[place ^ 1])
    assert "no sum over replica timed out" in run.text(with_it[place ^ 2])


def test_of_1024_ranks_none_waits_for_the_whole_job(tmp_path):
    """128 pipelines, 8 sets of replicas, 64 of shares and 128 of replicas of shares: none of them costs a barrier of the job."""
    code, text = by_itself(tmp_path, MANY)
    assert code == 0, text
    assert "members: (8, 16) waits: 0\n" in text
