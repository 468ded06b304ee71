"""Which hosts, ranks and links are named as slow, and which are not."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun_train.measure import verdict
from algorun_train.measure.links import partner, rounds
from algorun_train.measure.verdict import MeasuredHost, MeasuredLink, MeasuredRank

GB = 1e9


def links(count: int, slow: dict[tuple[int, int], MeasuredLink] | None = None, rate=10 * GB, trip=30e-6):
    """Those of `count` hosts, all alike but for some."""
    names = [f"algo-{n + 1}" for n in range(count)]
    return {
        (names[a], names[b]): (slow or {}).get((a, b), MeasuredLink(rate, trip))
        for a, b in itertools.combinations(range(count), 2)
    }


def texts(found):
    return [finding.text for finding in found]


@pytest.mark.parametrize("count", range(2, 40))
def test_every_pair_meets_once_and_no_host_twice_in_a_round(count):
    every = rounds(count)
    assert sorted(pair for pairs in every for pair in pairs) == list(itertools.combinations(range(count), 2))
    assert len(every) == count - 1 + count % 2
    for pairs in every:
        met = [host for pair in pairs for host in pair]
        assert len(met) == len(set(met))
        assert [partner(pairs, host) for host in met] == [other for a, b in pairs for other in (b, a)]
    assert rounds(1) == [[]]


@pytest.mark.parametrize("count", [3, 4, 9])
def test_a_slow_link_is_named_with_its_factor(count):
    found = verdict.odd_links(links(count, {(0, 2): MeasuredLink(GB, 30e-6)}), 2.0)
    assert texts(found) == ["link algo-1 - algo-3 is 10.0 times slower: 1 GB/s, 10 GB/s is usual"]
    assert (found[0].what, found[0].factor) == ("algo-1 - algo-3", 10.0)


def test_a_link_that_answers_late_is_named():
    found = verdict.odd_links(links(4, {(1, 2): MeasuredLink(10 * GB, 3e-3)}), 2.0)
    assert texts(found) == ["link algo-2 - algo-3 is 100.0 times later to answer: 3.00 ms, 0.03 ms is usual"]
    assert verdict.odd_links(links(4, {(1, 2): MeasuredLink(10 * GB, 400e-6)}), 2.0) == []  # the operating system's


@pytest.mark.parametrize("count", [3, 5])
def test_a_host_with_only_slow_links_is_named_in_their_place(count):
    slow = {pair: MeasuredLink(GB, 30e-6) for pair in itertools.combinations(range(count), 2) if 1 in pair}
    found = verdict.odd_links(links(count, slow), 2.0)
    assert [finding.what for finding in found] == ["algo-2"]
    assert texts(found)[0].startswith(
        f"algo-2: all its {count - 1} links are 10.0 to 10.0 times slower: 1 GB/s to 1 GB/s"
    )


def test_a_host_is_named_for_what_was_slow_both_times():
    hosts = [MeasuredHost(f"algo-{number}", GB, GB) for number in (1, 2, 3, 4)]
    first = [*hosts[:2], MeasuredHost("algo-3", GB, GB / 5), MeasuredHost("algo-4", GB / 3, GB)]
    assert {each.what for each in verdict.odd_hosts(first, 2.0)} == {"algo-3", "algo-4"}
    again = [MeasuredHost("algo-3", GB / 4, GB), MeasuredHost("algo-4", GB / 4, GB / 4)]
    (found,) = verdict.odd_hosts(verdict.better_hosts(first, again), 2.0)
    assert found.text == "algo-4: its memory is 3.0 times slower: 333 MB/s, 1 GB/s is usual"
    assert verdict.better_hosts(first, []) == first


def test_two_hosts_have_nothing_to_compare_with():
    assert verdict.odd_links(links(2, {(0, 1): MeasuredLink(1.0, 9.0)}), 2.0) == []
    assert verdict.suspects(links(2, {(0, 1): MeasuredLink(1.0, 9.0)}), 2.0, 4) == []


def test_the_worst_links_are_measured_again_first():
    slow = {(0, 1): MeasuredLink(GB, 30e-6), (2, 3): MeasuredLink(10 * GB, 3e-3), (1, 4): MeasuredLink(4 * GB, 30e-6)}
    assert verdict.suspects(links(6, slow), 2.0, 2) == [("algo-3", "algo-4"), ("algo-1", "algo-2")]


@pytest.mark.parametrize(
    ("again", "named"),
    [
        (MeasuredLink(GB, 9e-3), ["algo-1 - algo-2", "algo-1 - algo-2"]),  # bad both times
        (MeasuredLink(10 * GB, 9e-3), []),  # each figure was good once
    ],
)
def test_a_link_is_named_for_what_was_bad_both_times(again, named):
    first = MeasuredLink(GB, 30e-6) if not named else MeasuredLink(GB, 9e-3)
    measured = links(4, {(0, 1): verdict.better(first, again)})
    assert [finding.what for finding in verdict.odd_links(measured, 2.0)] == named


@given(st.integers(3, 8), st.floats(1.0, 1.9), st.integers(0, 2**32))
def test_links_within_the_factor_are_never_named(count, spread, seed):
    import random

    draw = random.Random(seed)
    alike = {
        link: MeasuredLink(10 * GB * draw.uniform(1.0, spread), 30e-6 * draw.uniform(1.0, spread))
        for link in links(count)
    }
    assert verdict.odd_links(alike, 2.0) == []
    assert verdict.suspects(alike, 2.0, 6) == []


def rank(number: int, *, device="NVIDIA H200", product=700e12, bits="a", steady=True) -> MeasuredRank:
    return MeasuredRank(number, f"algo-{number // 2 + 1}", device, device.startswith("NVIDIA"), product, bits, steady)


def test_a_slow_gpu_is_named_beside_those_of_its_kind_only():
    ranks = [*map(rank, range(6)), rank(6, product=400e12), rank(7, device="NVIDIA L4", product=60e12)]
    assert texts(verdict.odd_ranks(ranks, 2.0)) == [
        "rank 6 on algo-4: its matrix product is 1.75 times slower: 400 Tflop/s, 700 Tflop/s is usual for NVIDIA H200"
    ]
    cpus = [rank(n, device="EPYC with 2 threads", product=speed) for n, speed in enumerate([10e9, 11e9, 7e9, 10e9])]
    assert verdict.odd_ranks(cpus, 2.0) == []


def test_wrong_bits_are_named():
    ranks = [rank(0), rank(1, bits="b"), rank(2), rank(3, steady=False)]
    assert texts(verdict.odd_ranks(ranks, 2.0)) == [
        "rank 1 on algo-1: the bits of its matrix product differ from those of 3 others with NVIDIA H200",
        "rank 3 on algo-2: NVIDIA H200 gives other bits for the same matrix product from one time to the next: it computes wrongly",
    ]
    assert verdict.odd_ranks([rank(0), rank(1, bits="b")], 2.0) == []  # nobody knows which is right


def test_a_slow_disk_is_named_and_one_that_cannot_be_written_is_not_compared():
    hosts = [MeasuredHost("algo-1", 9 * GB, GB), MeasuredHost("algo-2", 9 * GB, GB / 20), MeasuredHost("algo-3", 9 * GB, GB),
             MeasuredHost("algo-4", 9 * GB, 0.0)]  # fmt: skip
    assert texts(verdict.odd_hosts(hosts, 2.0)) == ["algo-2: its disk is 20.0 times slower: 50 MB/s, 1 GB/s is usual"]
