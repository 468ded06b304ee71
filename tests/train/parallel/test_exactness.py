"""Pipelines on real ranks give what the unsplit model gives, in every schedule and layout, where torch's parts do not."""

import json
from dataclasses import asdict

import pytest
import torch

from algorun_train.common.errors import UserError
from algorun_train.parallel.schedules import SCHEDULES, rules
from tests.train.parallel.pipeline_cases import Case
from tests.train.training_runs import ROOT, Ranks

PROGRAM = str(ROOT / "tests" / "train" / "parallel" / "pipeline_cases.py")
EXACT = 1e-6  # of numbers around 1 in float32, after three steps


def by_hand(dp: int, pp: int, counts: dict[str, list[tuple[int, int]]]) -> list[Case]:
    """A case for each (chunks, microbatches) of a schedule, every second one with clipping."""
    cases = [(name, chunks, parts) for name, pairs in counts.items() for chunks, parts in pairs]
    return [
        Case("hand", name, dp, pp, parts, chunks, clip=0.05 if number % 2 else 0.0)
        for number, (name, chunks, parts) in enumerate(cases)
    ]


TWO = by_hand(1, 2, {
    "gpipe": [(1, 1), (1, 3)], "1f1b": [(1, 2), (1, 5)], "interleaved": [(2, 4), (3, 3)],
    "zero-bubble": [(1, 4), (2, 2), (3, 4)], "zbv": [(2, 1), (2, 4)], "dualpipev": [(2, 4), (2, 7)],
})  # fmt: skip
FOUR = by_hand(1, 4, {
    "gpipe": [(1, 2), (1, 4)], "1f1b": [(1, 4), (1, 6)], "interleaved": [(2, 4), (2, 8)],
    "zero-bubble": [(1, 8), (2, 4)], "zbv": [(2, 3), (2, 8)], "dualpipev": [(2, 8), (2, 9)],
})  # fmt: skip
V_SHAPED = ("zbv", "dualpipev")  # the first and the last stage are on one rank
CHUNKS = {name: max(2 if name == "interleaved" else 1, rule.chunks[0]) for name, rule in SCHEDULES.items()}
SQUARE = [
    Case("hand", name, 2, 2, 4, chunks, placement, clip=0.05)
    for name, chunks in CHUNKS.items()
    for placement in ("cluster", "spread")
]
CUT = [Case("gpt", name, 1, 2, 4, chunks, clip=0.1) for name, chunks in CHUNKS.items()] + [
    *(Case("in place", name, 1, 2, 4, chunks) for name, chunks in CHUNKS.items()),
    *(Case("squares", name, 1, 2, 4, chunks) for name, chunks in CHUNKS.items()),
    Case("gpt", "1f1b", 1, 4, 4),
    Case("gpt", "interleaved", 2, 2, 4, 2, "spread"),
    Case("convnet", "gpipe", 1, 2, 3),
    Case("convnet", "1f1b", 1, 4, 4),
    Case("convnet", "interleaved", 1, 2, 4, 2),
    Case("convnet", "zero-bubble", 1, 2, 4, 1),
    Case("bare", "1f1b", 1, 4, 4, clip=0.05),
]
TIED = [
    *(Case("tied gpt", name, 1, 2, 4, chunks, clip=0.1) for name, chunks in CHUNKS.items()),
    *(Case("thrice", name, 1, 2, 4, chunks, clip=0.05) for name, chunks in CHUNKS.items()),
    *(Case("thrice", name, 1, 4, 8, chunks, clip=0.05) for name, chunks in CHUNKS.items()),
    *(Case("thrice", name, 2, 2, 4, chunks, "spread") for name, chunks in CHUNKS.items()),
    Case("tied gpt", "1f1b", 1, 4, 4, clip=0.1),
    Case("tied gpt", "1f1b", 2, 2, 4, clip=0.1),
    Case("tied gpt", "interleaved", 2, 2, 4, 2, clip=0.1),
    Case("tied gpt", "gpipe", 1, 2, 2, recompute=True),
]
RECOMPUTED = [
    Case("convnet", "1f1b", 1, 2, 3, recompute=True),
    Case("convnet", "interleaved", 1, 2, 2, 2, recompute=True),
    Case("gpt", "gpipe", 2, 2, 2, recompute=True, clip=0.1),
]
BF16 = [
    Case("gpt", "1f1b", 1, 2, 2, bf16=True),
    Case("tied gpt", "1f1b", 1, 2, 2, bf16=True),
    Case("convnet", "interleaved", 1, 2, 2, 2, bf16=True),
]


def offered(case: Case) -> bool:
    """Whether this release of torch has the schedule for so few microbatches."""
    try:
        rules(case.schedule, case.pp, case.pp * case.chunks, case.microbatches, torch.__version__)
    except UserError:
        return False
    return True


EXACTLY = [case for case in (*TWO, *FOUR, *SQUARE, *CUT, *TIED, *RECOMPUTED) if offered(case)]
CASES = [*EXACTLY, *BF16]
CHECKS = {
    "stages_in_ddp": 4,
    "stages_without_shapes": 2,
    "batches_of_other_shapes": 2,
    "copies_that_go_apart": 2,
    "sums_of_gradients": 2,
    "sums_of_a_weight_of_two_stages": 2,
    "replicas_of_a_whole_model": 2,
}


@pytest.fixture(scope="module")
def results(request, tmp_path_factory):
    """The cases and checks of this session's tests, by number of ranks, each number in one start of ranks."""
    items = [item for item in request.session.items if item.path == request.path and "results" in item.fixturenames]
    asked = {item.callspec.params["case"] for item in items if hasattr(item, "callspec")}
    checked = any(not hasattr(item, "callspec") for item in items)
    found = {}
    for world in (2, 4):
        cases = [case for case in CASES if case in asked and case.dp * case.pp == world]
        checks = [name for name, ranks in CHECKS.items() if ranks == world and checked]
        base = tmp_path_factory.mktemp(f"world{world}")
        run = Ranks(base, 1, world, [json.dumps([*map(asdict, cases), *checks])], program=PROGRAM)
        try:
            assert run.codes() == [0] * world, "\n".join(run.text(rank) for rank in range(world))
        finally:
            run.kill()
        found |= dict(zip([*cases, *checks], json.loads((base / "host0" / "results.json").read_text()), strict=True))
    return found


def test_the_cases_are_all_schedules_in_all_layouts():
    for layout in ((1, 2, "cluster"), (1, 4, "cluster"), (2, 2, "cluster"), (2, 2, "spread")):
        there = {c.schedule for c in (*TWO, *FOUR, *SQUARE) if (c.dp, c.pp, c.placement) == layout}
        assert there == set(SCHEDULES)


def test_only_torch_2_10_leaves_cases_out():
    missing = [case for case in (*TWO, *FOUR, *SQUARE, *CUT, *TIED, *RECOMPUTED) if case not in EXACTLY]
    if torch.__version__.startswith("2.10."):
        assert all(c.schedule in ("zbv", "dualpipev") for c in missing)
    else:
        assert missing == []


# `make test` keeps each schedule, each kind of model and each kind of layout, but not all of their combinations.
@pytest.mark.slow(
    but=[
        "model=hand * dp=2 pp=2 * placement=spread*",
        "model=tied gpt schedule=zbv dp=1 pp=2 *",
        "model=tied gpt * recompute=True",
        "model=thrice schedule=zbv dp=1 pp=4 *",
        "model=gpt schedule=1f1b dp=1 pp=4 *",
        "model=in place schedule=zero-bubble *",
        "model=squares schedule=dualpipev *",
        "model=convnet schedule=interleaved *",
    ]
)
@pytest.mark.parametrize("case", EXACTLY, ids=str)
def test_training_and_evaluation_equal_those_of_the_unsplit_model(results, case):
    row = results[case]
    assert row["complete"]
    for what in ("gradients", "norm", "state", "losses", "scores"):
        assert row[what] <= (EXACT if what in ("gradients", "state") else 10 * EXACT), (what, row)


@pytest.mark.slow(
    but=[
        "model=hand * dp=2 pp=2 * placement=spread*",
        "model=tied gpt schedule=zbv dp=1 pp=2 *",
        "model=tied gpt * recompute=True",
        "model=thrice schedule=zbv dp=1 pp=4 *",
        "model=gpt schedule=1f1b dp=1 pp=4 *",
        "model=in place schedule=zero-bubble *",
        "model=squares schedule=dualpipev *",
        "model=convnet schedule=interleaved *",
    ]
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_rank_computes_in_the_order_of_the_schedule(results, case):
    assert results[case]["ordered"]
    assert results[case]["stuck"] == []  # the messages of an evaluation, which torch's schedule does not order


TIED_IN_MAKE_TEST = [
    "model=tied gpt schedule=1f1b dp=1 pp=2 microbatches=4 clip=0.1",
    "model=tied gpt schedule=zbv dp=1 pp=2 *",
    "model=tied gpt * recompute=True",
    "model=thrice schedule=zbv dp=1 pp=4 *",
]


@pytest.mark.slow(but=TIED_IN_MAKE_TEST)
@pytest.mark.parametrize("case", [case for case in CASES if case in (*TIED, *BF16)], ids=str)
def test_copies_of_a_weight_stay_equal_to_the_last_bit(results, case):
    assert results[case]["apart"] == []


@pytest.mark.slow(but=TIED_IN_MAKE_TEST)
@pytest.mark.parametrize("case", [case for case in TIED if case in CASES and case.dp == 1], ids=str)
def test_weights_on_several_ranks_cost_one_collective_a_step(results, case):
    row = results[case]
    holders = row["holders"]["embed.tokens.weight" if case.model == "tied gpt" else "blocks.0.0.weight"]
    if case.model == "tied gpt":
        assert holders == (1 if case.schedule in V_SHAPED else 2)
        assert sorted(row["collectives"]) == [0] * (case.pp - 2) + [1 if holders == 2 else 0] * 2
    else:
        assert max(row["collectives"]) <= 2  # of the weight's holders and of the bias's, which may be others
        assert any(row["collectives"])


@pytest.mark.slow(but=["model=tied gpt *", "model=convnet schedule=interleaved *"])
@pytest.mark.parametrize("case", BF16, ids=str)
def test_bf16_is_close_to_the_unsplit_model_in_bf16(results, case):
    row = results[case]
    assert row["complete"]
    assert row["gradients"] <= 1e-3
    assert row["state"] <= 1e-3
    assert row["losses"] <= 1e-3


def test_stages_in_ddp_are_wrong_under_zero_bubble_and_ours_are_not(results):
    """Should torch repair pytorch#144530, the first line says so."""
    assert results["stages_in_ddp"]["theirs"] > 1e-3
    assert results["stages_in_ddp"]["ours"] <= EXACT


def test_batch_statistics_see_no_memory_that_nobody_wrote(results):
    row = results["stages_without_shapes"]
    assert row["ours"] == [0.0, 0.0]
    if torch.__version__.startswith(("2.12.", "2.13.")):
        assert not all(difference <= EXACT for difference in row["theirs"])


def test_a_batch_of_another_shape_is_refused_alike_on_all_ranks_and_costs_nothing(results):
    row = results["batches_of_other_shapes"]
    assert row["said"][0] == row["said"][1]
    shapes = [s for s in ("[7, 12]", "[6, 12]", "[16, 12]", "[8, 11]") for _ in ("step", "evaluate")]
    assert row["said"][0] == [
        f"a batch of shape {shape}; allowed: [8, 12], that is 4 microbatches of 2; fix: pad the last batch, or leave it out"
        for shape in shapes
    ]
    assert row["difference"] <= EXACT


def test_a_copy_that_goes_its_own_way_is_named_at_the_next_step_and_rounding_is_made_good(results):
    first, second = results["copies_that_go_apart"]["said"]
    assert first == second
    one, other = results["copies_that_go_apart"]["rows"]
    assert one[:2] == other[:2] == [one[0]] * 2
    assert one[2] != other[2]
    assert first[:2] == ["", ""]
    assert first[2].startswith(
        "weight embed.tokens.weight, which several stages use, is no longer the same on the ranks that hold it; allowed: "
    )


def test_gradients_are_summed_in_any_buckets_with_some_that_a_replica_lacks(results):
    for rows in results["sums_of_gradients"]["rows"]:
        assert [row["buckets"] for row in rows] == [4, 4, 1, 1, 4, 4]
        assert all(row["difference"] <= EXACT for row in rows)
        assert all(row["frozen"] == [True, True] for row in rows)


def test_a_weight_of_two_stages_of_a_rank_leaves_when_both_have_added_to_it(results):
    both = sum(10 * turn + stage + 100 * rank for turn in range(2) for stage in range(2) for rank in range(2))
    assert results["sums_of_a_weight_of_two_stages"]["rows"] == [[[both] * 3, [4.0] * 3, False]] * 2


def test_one_rank_for_each_pipeline_equals_distributed_data_parallel(results):
    assert results["replicas_of_a_whole_model"] == {"ddp": pytest.approx(0, abs=EXACT), "names": True}
