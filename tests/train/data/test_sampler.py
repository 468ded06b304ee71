"""The order of samples: every sample once, whatever the number of ranks, the batch and the point of resumption."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from algorun_train.data.augment import Augment, bits
from algorun_train.data.sampler import Batching, held_out, permutation, steps_in, take, walk

counts = st.integers(1, 300)
small = st.integers(1, 9)


def taken(order, begin, batch, accumulation, replicas):
    """What all ranks together count, step by step."""
    ranks = [list(walk(order, begin, Batching(batch, accumulation, r, replicas))) for r in range(replicas)]
    assert len({len(steps) for steps in ranks}) == 1  # all ranks take part in every step
    for steps in zip(*ranks, strict=True):
        pieces = [piece for step in steps for piece in step.pieces]
        assert all(len(piece.indices) == batch for piece in pieces)  # shapes never change
        valid = [index for piece in pieces for index in piece.indices[: piece.valid]]
        assert len(valid) == steps[0].total
        yield valid


@given(counts, small, small, small, st.integers(0, 2**32 - 1), st.integers(0, 50), st.data())
def test_each_sample_exactly_once_from_any_point(count, batch, accumulation, replicas, seed, epoch, data):
    order = permutation(count, seed, epoch)
    begin = data.draw(st.integers(0, count))
    seen = [index for step in taken(order, begin, batch, accumulation, replicas) for index in step]
    assert sorted(seen) == sorted(order[begin:])
    assert sorted(order) == list(range(count))


@given(counts, small, small, small)
def test_a_step_is_the_same_set_of_samples_on_every_layout(count, batch, accumulation, replicas):
    order = permutation(count, 0, 0)
    spread = [set(step) for step in taken(order, 0, batch, accumulation, replicas)]
    alone = [set(step) for step in taken(order, 0, batch * accumulation * replicas, 1, 1)]
    assert spread == alone
    assert len(alone) == steps_in(count, batch * accumulation * replicas)


@given(counts, small, small, small, small)
def test_a_resumed_epoch_may_have_other_ranks(count, batch, replicas, other_batch, other_replicas):
    order = permutation(count, 1, 2)
    first = take(order, 0, Batching(batch, 1, 0, replicas))
    before = list(order[: first.end])
    after = [index for step in taken(order, first.end, other_batch, 1, other_replicas) for index in step]
    assert sorted(before + after) == list(range(count))


@given(counts, small, small, small, st.data())
def test_the_weight_of_a_step_counts_the_labels_of_its_samples_on_every_rank(
    count, batch, accumulation, replicas, data
):
    order, labels = (
        permutation(count, 3, 4),
        np.array(data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))),
    )
    ranks = [list(walk(order, 0, Batching(batch, accumulation, r, replicas), 0, labels)) for r in range(replicas)]
    for steps in zip(*ranks, strict=True):
        counted = [labels[i] for step in steps for piece in step.pieces for i in piece.indices[: piece.valid]]
        assert {step.weight for step in steps} == {sum(counted)}
    assert all(step.weight == step.total for step in walk(order, 0, Batching(batch, accumulation, 0, replicas)))


def test_orders_differ_between_epochs_and_seeds():
    orders = {tuple(permutation(50, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4


@given(st.lists(st.integers(0, 4), min_size=1, max_size=200), st.sampled_from([0.1, 0.2, 0.5]))
def test_held_out_is_a_stratified_split(labels, share):
    labels = np.array(labels)
    training, validation = held_out(labels, share)
    assert sorted([*training, *validation]) == list(range(len(labels)))
    for label in np.unique(labels):
        members, held = (labels == label).sum(), (labels[validation] == label).sum()
        assert held < members  # every class can be learned
        assert abs(held - share * members) <= 1


@given(st.integers(0, 2**32 - 1), st.integers(0, 1000), st.permutations(range(20)))
def test_augmentation_depends_on_the_sample_and_not_on_its_place(seed, epoch, order):
    import torch

    images = torch.arange(20 * 8 * 8 * 3).reshape(20, 8, 8, 3)
    change = Augment("shift+flip", seed, 20, 8)
    whole = change(images, epoch, np.arange(20))
    index = np.array(order)
    assert torch.equal(change(images[order], epoch, index), whole[order])


def test_augmentation_bits_are_spread():
    drawn = bits(0, 0, 20_000) % np.uint64(3)
    shares = np.bincount(drawn.astype(np.int64)) / len(drawn)
    assert np.all(np.abs(shares - 1 / 3) < 0.02)


def test_shifts_repeat_edges_and_move_by_an_eighth_at_most():
    import torch

    image = torch.arange(8).view(1, 8, 1, 1).expand(1, 8, 8, 3)  # every row holds its own number
    moves = set()
    for epoch in range(40):
        changed = Augment("shift", 0, 1, 8)(image, epoch, np.array([0]))[0, :, 0, 0]
        moves.add(int(changed[4]) - 4)
        assert torch.equal(changed, torch.clamp(torch.arange(8) + int(changed[4]) - 4, 0, 7))
    assert moves == {-1, 0, 1}
