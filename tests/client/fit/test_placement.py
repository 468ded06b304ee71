"""Which hosts are offered, and in which order: of memories that are made up."""

from __future__ import annotations

import pytest

from algorun_client.fit.placement import Asked, Memory, Offer, RankLayout, layouts, offers, with_tensor_groups

GB = 10**9
PRICES = {"ml.g5.xlarge": 1.4, "ml.g5.12xlarge": 7.0, "ml.p4d.24xlarge": 37.0, "ml.g4dn.12xlarge": 4.9}


def memories(asked: Asked, whole: float, kept: float = 0.0) -> dict[RankLayout, Memory]:
    """A model of `whole` GB of weights and moments, and `kept` GB of activations that --recompute makes none of."""
    return {
        each: Memory(int(whole * GB / each.shards), 0, 0, 0, 0 if each.recompute else int(kept * GB))
        for each in layouts(asked)
    }


def offered(asked: Asked, whole: float, kept: float = 0.0, prices: dict[str, float] = PRICES) -> list[Offer]:
    return offers(asked, memories(asked, whole, kept), prices)


def test_the_cheapest_that_fits_comes_first_and_what_does_not_fit_last():
    found = offered(Asked(tuple(PRICES), 4), 50)
    assert [each.instance for each in found] == [
        "ml.g4dn.12xlarge",
        "ml.g5.xlarge",
        "ml.g5.12xlarge",
        "ml.p4d.24xlarge",
    ]
    assert [(each.hosts, each.layout.shards) for each in found] == [(1, 4), (4, 4), (1, 4), (1, 8)]
    assert [each.price for each in found] == [4.9, 5.6, 7.0, 37.0]


def test_the_fewest_hosts_that_fit_are_offered():
    (offer,) = offered(Asked(("ml.g5.12xlarge",), 8), 150)
    assert (offer.hosts, offer.layout.shards, offer.fits) == (2, 8, True)
    assert offer.price == 14.0


def test_a_host_that_is_as_large_as_it_gets_and_too_small_is_named_with_what_is_missing():
    found = offered(Asked(("ml.g5.12xlarge", "ml.p4d.24xlarge"), 1), 200)
    assert [(each.instance, each.fits) for each in found] == [("ml.p4d.24xlarge", True), ("ml.g5.12xlarge", False)]
    assert found[1].share == pytest.approx(200 / 4 / 24)


def test_nine_tenths_of_a_gpu_are_used():
    assert offered(Asked(("ml.g5.xlarge",), 1), 21.6)[0].fits
    assert not offered(Asked(("ml.g5.xlarge",), 1), 21.7)[0].fits


def test_activations_are_computed_again_only_where_nothing_else_fits():
    (easy,) = offered(Asked(("ml.g5.12xlarge",), 1), 40, 8)
    assert (easy.layout.shards, easy.layout.recompute) == (4, False)
    (tight,) = offered(Asked(("ml.g5.12xlarge",), 1), 40, 15)
    assert (tight.layout.shards, tight.layout.recompute) == (4, True)


def test_fewer_shards_are_better_if_they_fit():
    (offer,) = offered(Asked(("ml.g5.12xlarge",), 4), 10)
    assert (offer.hosts, offer.layout.shards) == (1, 1)


def test_gpus_without_units_for_bf16_compute_in_fp32():
    found = {each.instance: each.layout.precision for each in offered(Asked(tuple(PRICES), 1), 1)}
    assert found == {
        "ml.g5.xlarge": "bf16",
        "ml.g5.12xlarge": "bf16",
        "ml.p4d.24xlarge": "bf16",
        "ml.g4dn.12xlarge": "fp32",
    }
    assert {each.layout.precision for each in offered(Asked(tuple(PRICES), 1, precision="bf16"), 1)} == {"bf16"}


def test_a_type_without_a_price_comes_after_those_with_one():
    found = offered(Asked(("ml.p5.48xlarge", "ml.p4d.24xlarge"), 1), 1)
    assert [(each.instance, each.price) for each in found] == [("ml.p4d.24xlarge", 37.0), ("ml.p5.48xlarge", None)]


def test_what_the_user_has_decided_stays():
    (offer,) = offered(Asked(("ml.p4d.24xlarge",), 2, shards="4", recompute=True), 1)
    assert offer.layout == RankLayout(4, "bf16", True)
    (whole,) = offered(Asked(("ml.p4d.24xlarge",), 2, shards="all"), 1)
    assert whole.layout.shards == 8


def test_shards_that_divide_no_number_of_ranks_leave_no_layout():
    assert layouts(Asked(("ml.p4d.24xlarge",), 2, shards="3")) == []
    assert offers(Asked(("ml.p4d.24xlarge",), 2, shards="3"), {}, {}) == []
    (offer,) = offered(Asked(("ml.g5.xlarge", "ml.p4d.24xlarge"), 2, shards="8"), 1)
    assert offer.instance == "ml.p4d.24xlarge"


def test_tensor_groups_stay_as_asked_and_shards_count_groups():
    found = layouts(Asked(("ml.g5.12xlarge",), 2, tensor=2))
    assert {(each.shards, each.alone) for each in found} == {(1, False), (2, False), (4, False)}
    assert {each.tensor for each in found} == {2}
    one_host = layouts(Asked(("ml.g5.12xlarge",), 2, tensor=4))
    assert {(each.shards, each.alone) for each in one_host} == {(1, True), (1, False), (2, False)}
    assert layouts(Asked(("ml.g5.12xlarge",), 1, tensor=3)) == []
    assert layouts(Asked(("ml.g5.12xlarge",), 2, tensor=8)) == []  # a group on two hosts
    assert {each.shards for each in layouts(Asked(("ml.g5.12xlarge",), 2, shards="all", tensor=4))} == {1, 2}


def test_tensor_groups_are_tried_only_where_nothing_else_fits():
    asked = Asked(("ml.p4d.24xlarge",), 2)
    assert with_tensor_groups(asked, memories(asked, 20)) == []  # fits one host
    found = with_tensor_groups(asked, memories(asked, 400))  # needs both
    assert {(each.tensor, each.shards) for each in found} == {(2, 4), (4, 2), (8, 1)}
    assert {each.alone for each in found if each.tensor == 8} == {True}
    assert with_tensor_groups(Asked(("ml.p4d.24xlarge",), 2, tensor=1), {}) == []
    assert with_tensor_groups(Asked(("ml.p4d.24xlarge",), 2, in_stages=True), {}) == []


def test_the_smallest_tensor_group_that_fits_is_offered_and_one_that_cannot_be_is_not():
    asked = Asked(("ml.p4d.24xlarge",), 1)
    computed = memories(asked, 400)
    more = with_tensor_groups(asked, computed)
    computed |= {each: Memory(0, 0, 0, 0, (200 // each.tensor) * GB // 2) for each in more if each.tensor != 2}
    (offer,) = offers(asked, computed, {})
    assert (offer.layout.tensor, offer.layout.shards, offer.layout.recompute, offer.fits) == (4, 2, False, True)


def test_stages_are_powers_of_two_or_as_asked_and_the_fewest_that_fit_are_offered():
    asked = Asked(("ml.g5.12xlarge",), 2, in_stages=True)
    found = layouts(asked)
    assert {(each.stages, each.alone) for each in found} == {(2, False), (4, True), (4, False), (8, True)}
    held = {each: Memory(100 * GB // each.stages, 0, 0, 0, 0) for each in found}
    (offer,) = offers(asked, held, {})
    assert (offer.hosts, offer.layout.stages, offer.fits) == (2, 8, True)
    assert offer.layout.options == ("--pp", "8", "--precision", "bf16")
    assert {each.stages for each in layouts(Asked(("ml.g5.12xlarge",), 3, in_stages=True, stages=3))} == {3}
    assert layouts(Asked(("ml.g5.12xlarge",), 2, in_stages=True, stages=3)) == []


def test_each_layout_is_computed_once():
    found = layouts(Asked(("ml.p4d.24xlarge", "ml.p5.48xlarge"), 4))
    assert len(found) == len(set(found))
    assert {each.shards for each in found} == {1, 8, 16, 32}


def test_the_options_are_those_of_the_job():
    assert RankLayout(2, "fp32", False, tensor=4).options == ("--tp", "4", "--shard", "2")
    assert RankLayout(1, "fp32", False).options == ()
    assert RankLayout(8, "bf16", True).options == ("--shard", "8", "--precision", "bf16", "--recompute", "True")
