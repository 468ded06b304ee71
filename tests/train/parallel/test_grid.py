"""Where ranks stand: a bijection in both placements, with neighbours where the placement says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun_train.common.errors import UserError
from algorun_train.parallel.layout.grid import PLACEMENTS, Grid, grid

grids = st.builds(
    Grid, st.integers(1, 9), st.integers(1, 9), st.sampled_from(PLACEMENTS), st.sampled_from([1, 1, 2, 3])
)


@given(grids)
def test_places_and_ranks_are_a_bijection(grid):
    ranks = range(grid.dp * grid.pp * grid.tensor)
    places = [(*grid.place(rank), rank % grid.tensor) for rank in ranks]
    assert [grid.rank(*place) for place in places] == list(ranks)
    assert sorted(places) == [
        (dp, pp, index) for dp in range(grid.dp) for pp in range(grid.pp) for index in range(grid.tensor)
    ]


@given(grids)
def test_every_rank_is_in_one_pipeline_and_one_set_of_replicas(grid):
    ranks = list(range(grid.dp * grid.pp * grid.tensor))
    assert sorted(rank for pipeline in grid.pipelines for rank in pipeline) == ranks
    assert sorted(rank for replicas in grid.replicas for rank in replicas) == ranks
    for number, pipeline in enumerate(grid.pipelines):
        dp, index = divmod(number, grid.tensor)
        assert [grid.place(rank) for rank in pipeline] == [(dp, pp) for pp in range(grid.pp)]
        assert {rank % grid.tensor for rank in pipeline} == {index}
    for number, replicas in enumerate(grid.replicas):
        pp, index = divmod(number, grid.tensor)
        assert [grid.place(rank) for rank in replicas] == [(dp, pp) for dp in range(grid.dp)]
        assert {rank % grid.tensor for rank in replicas} == {index}


@given(st.integers(1, 9), st.integers(1, 9))
def test_cluster_makes_neighbours_of_a_pipeline_and_spread_of_replicas(dp, pp):
    assert Grid(dp, pp).pipelines == tuple(tuple(range(d * pp, d * pp + pp)) for d in range(dp))
    assert Grid(dp, pp, "spread").replicas == tuple(tuple(range(p * dp, p * dp + dp)) for p in range(pp))


def test_two_pipelines_of_four_ranks():
    assert grid(8, 4).pipelines == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert grid(8, 4).replicas == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert grid(8, 4, "spread").pipelines == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert grid(8, 4, "spread").replicas == ((0, 1), (2, 3), (4, 5), (6, 7))


def test_two_replicas_of_two_stages_in_tensor_groups_of_two_ranks():
    found = grid(8, 2, tensor=2)
    assert found.pipelines == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert found.replicas == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert grid(8, 2, "spread", tensor=2).replicas == ((0, 2), (1, 3), (4, 6), (5, 7))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((8, 8, "cluster", None, 2), "option --pp: 8 does not divide the job's 4 tensor groups; allowed: 1, 2, 4; fix: .*"),
        ((6, 4), "option --pp: 4 does not divide the job's 6 ranks; allowed: 1, 2, 3, 6; fix: choose one of them, or start another number of ranks"),
        ((4, 8), "option --pp: 8 does not divide the job's 4 ranks; allowed: 1, 2, 4; fix: .*"),
        ((4, 0), "option --pp: 0 does not divide the job's 4 ranks; allowed: 1, 2, 4; fix: .*"),
        ((4, 2, "ring"), "option --placement: 'ring'; allowed: cluster, spread; fix: use one of them"),
    ],
)  # fmt: skip
def test_what_cannot_be_shared_out_is_refused(arguments, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        grid(*arguments)
