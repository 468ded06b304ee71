"""What a host tells the leader of its figures: only what its ranks' steps vouch for counts as training."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.timing.activities import NAMES
from algorun.timing.host_figures import FolderFigures, GpuFigures, HostFigures
from algorun.timing.host_load import HostLoad, host_load
from algorun.timing.rank_times import RankTimes
from tests.conftest import examples

GIB = 1 << 30


def sample(**values):
    return HostFigures(10.0, 10.0, 2.0, "algo-1", **values)


def rank(steps, at, **spent):
    return RankTimes(0, 0, steps, at, tuple(float(spent.get(name, 0)) for name in NAMES))


def trained(**spent):
    return [rank(5, 100.0)], [rank(9, 110.0, **spent)]


def test_a_window_of_steps_is_training_with_its_share_of_waiting():
    found = host_load([sample(cpu=0.25, cores=8, disk_read=5.0)], *trained(data=4, forward=3))
    assert found == HostLoad(True, 10.0, 1, 0.4, 0.25, 8, 5.0)
    later = host_load([], [rank(5, 100.0, data=7)], [rank(9, 110.0, data=11)])
    assert later.data == 0.4, "of the window alone"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], []),
        ([rank(0, 100.0)], [rank(5, 110.0)]),  # the first step is in it
        ([rank(5, 100.0)], [rank(5, 110.0)]),  # no step
        ([rank(5, 100.0), rank(5, 100.0)], [rank(9, 110.0), rank(5, 110.0)]),  # one rank has made none
        trained(evaluation=2),
        trained(saving=0.6, evaluation=0.6),
    ],
)
def test_what_is_no_training_is_not_judged(before, after):
    assert not host_load([sample(cpu=1.0)], before, after).training


def test_idle_and_throttled_gpus_are_counted():
    gpus = (
        GpuFigures(0.9, throttled=("power cap",)),
        GpuFigures(0.02),
        GpuFigures(0.5, throttled=("power cap", "thermal (hardware)")),
        GpuFigures(None),  # has MIG slices
    )
    found = host_load([sample(gpus=gpus)], *trained())
    assert (found.gpus, found.idle, found.throttled, found.reasons) == (3, 1, 1, ("thermal (hardware)",))


def test_a_gpu_that_works_now_and_then_is_not_idle():
    samples = [sample(gpus=(GpuFigures(use),)) for use in (0.0, 0.0, 0.3)]
    assert host_load(samples, *trained()).idle == 0


@pytest.mark.parametrize(
    ("free", "size", "full"),
    [
        (9 * GIB, 1000 * GIB, True),
        (11 * GIB, 1000 * GIB, False),  # 1 % of a large disk is room enough
        (2 * GIB, 30 * GIB, False),
        (1 * GIB, 30 * GIB, True),
        (60 << 20, 64 << 20, False),
    ],
)
def test_a_disk_is_nearly_full_by_share_and_by_room(free, size, full):
    room = FolderFigures("/opt/ml/checkpoints", free, size)
    assert host_load([sample(folders=(room,))]).fullest == (room if full else None)


def test_memory_is_a_share_of_the_limit():
    assert host_load([sample(memory_bytes=30, memory_limit_bytes=40)]).memory == 0.75
    assert host_load([sample(memory_bytes=30)]).memory is None


@examples(200)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=4), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_no_more_gpus_are_idle_than_there_are(first, last):
    gpus = [tuple(GpuFigures(use) for use in row) for row in (first, last)]
    found = host_load([sample(gpus=row) for row in gpus], *trained())
    assert found.gpus == len(last)
    assert 0 <= found.idle <= found.gpus
