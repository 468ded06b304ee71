"""When a loss is called a spike."""

from __future__ import annotations

import math
import random

from algorun_train.loop.loss_spikes import LEAST, LossSpikes


def falling(count, noise=0.05, seed=0):
    chance = random.Random(seed)
    return [4.0 * math.exp(-each / 50) * (1 + chance.gauss(0, noise)) + 1.0 for each in range(count)]


def test_a_training_that_falls_and_scatters_has_none():
    for seed in range(20):
        spikes = LossSpikes()
        assert not any(spikes.add(loss) for loss in falling(300, seed=seed))


def test_a_spike_is_told_with_the_median_and_does_not_hide_the_next_one():
    spikes = LossSpikes()
    for loss in falling(100):
        spikes.add(loss)
    assert spikes.add(30.0).startswith("the loss is 30.0000; the median of the 32 before it is 1.")
    assert spikes.add(31.0)
    assert not spikes.add(1.6)


def test_few_losses_and_equal_ones_tell_nothing():
    spikes = LossSpikes()
    assert not any(spikes.add(loss) for loss in [1.0] * (LEAST - 1))
    assert not spikes.add(9.0), "too few before it"
    for _ in range(LEAST):
        spikes.add(2.0)
    assert not spikes.add(2.1), "losses that hardly scatter"


def test_a_loss_that_is_not_finite_is_no_measure_for_others():
    spikes = LossSpikes()
    for loss in [*falling(20), math.nan, math.inf]:
        spikes.add(loss)
    assert spikes.add(100.0)
