"""What the ranks of a tensor group hold of a weight: together all of it, each number once, whatever the sizes."""

from __future__ import annotations

import itertools

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from algorun_train.parallel.shard.sharded_model import taken
from algorun_train.parallel.shard.split import OwnPiece, Split

SHAPES = [(7, 4), (8, 6), (12, 3, 4)]
CASES = [
    case
    for case in itertools.product(SHAPES, [0, 1], [1, 2], [1, 2, 3], [1, 2])
    if case[0][case[1]] % case[2] == 0  # blocks of one matrix have equal sizes
]


@pytest.mark.parametrize(("shape", "dim", "blocks", "ranks", "shards"), CASES)
def test_each_number_is_held_once(tmp_path, shape, dim, blocks, ranks, shards):
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    split = Split(shape, dim, ranks, blocks)
    save_file({"weight": whole}, tmp_path / "weights")
    seen = []
    with safe_open(tmp_path / "weights", "pt") as file:
        for rank, number in itertools.product(range(ranks), range(shards)):
            local = split.local_shape(rank)
            rows = -(-local[0] // shards)
            first = min(number * rows, local[0])
            held = slice(first, min(first + rows, local[0])) if shards > 1 else None
            piece = OwnPiece(split, rank, held)
            part = taken(whole, piece)
            assert part.shape[1:] == local[1:]
            assert piece.is_empty == (part.numel() == 0)
            if part.numel():
                assert torch.equal(taken(file.get_slice("weight"), piece), part)
            seen += part.flatten().tolist()
    assert sorted(seen) == list(range(whole.numel()))


def test_gate_and_inner_weights_in_one_matrix_are_each_split():
    both = Split((8, 1), 0, ranks=2, blocks=2)
    assert [both.ranges(rank) for rank in range(2)] == [((0, 2), (4, 6)), ((2, 4), (6, 8))]


def test_a_rank_behind_the_last_row_has_none():
    assert [Split((5, 1), 0, ranks=4).local_shape(rank) for rank in range(4)] == [(2, 1), (2, 1), (1, 1), (0, 1)]
