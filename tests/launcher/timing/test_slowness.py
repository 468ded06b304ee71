"""Who makes the others wait: found where it is so, and never said where it is not. Times are those of made-up jobs."""

from __future__ import annotations

import random

import pytest

from algorun.common.fast_dataclasses import replace
from algorun.timing.activities import NAMES
from algorun.timing.rank_times import RankTimes
from algorun.timing.slowness import CORE, OTHER, excesses, median, slow_ranks

STEP_S, WINDOW_S = 0.1, 10.0
WORK = {
    "data": 0.05,
    "forward": 0.3,
    "backward": 0.5,
    "optimizer": 0.05,
    "saving": 0.0,
    OTHER: 0.05,
}  # of a step; the rest is exchange
PARTS = (*WORK,)


def reports(ranks, *, late=(), part="forward", delay=0.0, noise=0.0, groups=1, seed=0, unseen=False):
    """The reports of `ranks` ranks at the begin and at the end of a window; `late` ones take `delay` of a step longer."""
    draw = random.Random(seed)
    steps = int(WINDOW_S / STEP_S)
    before, after = {}, {}
    for rank in range(ranks):
        spent = dict.fromkeys((*NAMES, OTHER), 0.0)
        whole = 0.0
        for _ in range(steps):
            step = STEP_S * (1 + delay + noise)
            own = {name: STEP_S * share * (1 + draw.uniform(-noise, noise)) for name, share in WORK.items()}
            own[part] += STEP_S * delay if rank in late else 0.0
            whole += step
            for name, seconds in own.items():
                spent[name] += seconds
            spent["exchange"] += max(0.0, step - sum(own.values()))
        begin = draw.uniform(0, 1000)
        seconds = tuple(0.0 if unseen else spent[name] for name in NAMES)
        group = rank % groups
        before[rank] = RankTimes(rank, group, 7, begin, (0.0,) * len(NAMES))
        after[rank] = RankTimes(rank, group, 7 + steps, begin + whole, seconds)
    return before, after


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("delay", [0.2, 1.0])
@pytest.mark.parametrize(("ranks", "groups"), [(2, 1), (4, 1), (8, 2), (64, 1)])
def test_a_delay_of_a_rank_is_found_with_its_part(part, delay, ranks, groups):
    for seed in range(8):
        late = seed * 7 % ranks
        found = slow_ranks(*reports(ranks, late=(late,), part=part, delay=delay, noise=0.05, groups=groups, seed=seed))
        assert found is not None
        assert found.ranks == (late,)
        assert found.activity == part
        assert found.factor == pytest.approx(1 + delay / sum(WORK.values()), rel=0.05)
        assert found.waited == pytest.approx(delay / (1 + delay), rel=0.25)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("delay", [0.05, 0.2, 1.0])
def test_a_delay_is_the_first_of_all_excesses(part, delay):
    for seed in range(8):
        found = excesses(*reports(8, late=(seed,), part=part, delay=delay, noise=0.1, groups=2, seed=seed))
        assert (found[0].rank, found[0].activity) == (seed, part)
        assert found[0].share == pytest.approx(delay / (1.1 + delay), rel=0.25)
        assert found == sorted(found, key=lambda each: -each.share)


def test_one_rank_has_nobody_to_be_above():
    assert excesses(*reports(4, late=(1,), delay=1.0, groups=4)) == []


@pytest.mark.parametrize(("queued_s", "activity"), [(0.0, "backward"), (2.0, "backward"), (3.0, CORE), (5.0, CORE)])
def test_a_rank_that_finds_no_core_is_named_with_that(queued_s, activity):
    """A delay of 50 % is 5 s here: the cause is what explains half of them."""
    before, after = reports(4, late=(2,), part="backward", delay=0.5)
    after = {rank: replace(each, queued=1.0 + (queued_s if rank == 2 else 0.0)) for rank, each in after.items()}
    found = slow_ranks({rank: replace(each, queued=1.0) for rank, each in before.items()}, after)
    assert found is not None
    assert (found.ranks, found.activity) == ((2,), activity)


@pytest.mark.parametrize(("others_s", "named"), [(0.0, True), (2.0, True), (4.0, False)])
def test_where_all_find_too_few_cores_nobody_is_named(others_s, named):
    before, after = reports(4, late=(2,), part="backward", delay=0.5)
    queued = {rank: others_s + (3.0 if rank == 2 else 0.0) for rank in after}
    found = slow_ranks(before, {rank: replace(each, queued=queued[rank]) for rank, each in after.items()})
    assert (found is not None) == named


def test_all_ranks_of_a_slow_host_are_found():
    found = slow_ranks(*reports(8, late=(4, 5, 6, 7), delay=0.5, noise=0.05))
    assert found is not None
    assert found.ranks == (4, 5, 6, 7)


@pytest.mark.parametrize("seed", range(100))
def test_nobody_is_slow_in_an_even_job(seed):
    assert slow_ranks(*reports(2 + seed % 7, noise=0.3, seed=seed)) is None


def test_nothing_is_said_where_nobody_waits():
    before, after = reports(4, late=(1,), delay=1.0, unseen=True)
    assert slow_ranks(before, after) is None, "nothing but `other` is seen"
    before, after = reports(4, late=(1,), delay=1.0, groups=4)
    assert slow_ranks(before, after) is None, "stages of one rank each have nothing to be compared with"


def test_ranks_that_do_not_train_together_are_not_compared():
    before, after = reports(4, late=(1,), delay=1.0)
    one = after[1]
    after[1] = RankTimes(1, 0, one.steps - 40, one.at, one.activities)
    assert slow_ranks(before, after) is None


def works_for_all(activity, seconds):
    """The reports of a job in which rank 0 does something for so long, and the others wait for it."""
    before, after = reports(4)
    for rank in after:
        spent = list(after[rank].activities)
        spent[NAMES.index(activity if rank == 0 else "exchange")] += seconds
        after[rank] = RankTimes(rank, 0, after[rank].steps, after[rank].at + seconds, tuple(spent))
    return before, after


def test_a_rank_that_saves_for_all_is_named_if_the_others_wait_long_for_it():
    assert slow_ranks(*works_for_all("saving", 0.5)) is None
    found = slow_ranks(*works_for_all("saving", 2.0))
    assert found is not None
    assert (found.ranks, found.activity) == ((0,), "saving")


def test_evaluations_tell_nothing_because_ranks_wait_for_others_within_them():
    assert slow_ranks(*works_for_all("evaluation", 2.0)) is None
    assert "evaluation" not in {each.activity for each in excesses(*works_for_all("evaluation", 2.0))}


def test_before_the_first_step_and_with_few_steps_nothing_is_said():
    before, after = reports(2, late=(0,), delay=1.0)
    fresh = {rank: RankTimes(rank, 0, 0, each.at, each.activities) for rank, each in before.items()}
    assert slow_ranks(fresh, after) is None
    few = {rank: RankTimes(rank, 0, before[rank].steps + 2, each.at, each.activities) for rank, each in after.items()}
    assert slow_ranks(before, few) is None


def test_the_median():
    assert median([3.0]) == 3.0
    assert median([4.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 8.0]) == 3.0
