"""How options and the number of ranks become a layout, and which rule is named where they do not."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun_train.common.errors import UserError
from algorun_train.options.job_options import PipelineJobOptions
from algorun_train.options.mp_parameters import MpParameters, parse
from algorun_train.options.pipeline_layout import PER_RANK, lay_out
from algorun_train.parallel import schedules
from algorun_train.parallel.layout.grid import Grid


def laid_out(world, wishes=None, **options):
    return lay_out(PipelineJobOptions(**options), wishes or MpParameters(), world)


@pytest.mark.parametrize(
    ("world", "options", "grid", "name", "stages", "microbatches", "microbatch"),
    [
        (1, {}, Grid(1, 1), "1f1b", 1, 4, 8),
        (2, {}, Grid(1, 2), "1f1b", 2, 8, 4),
        (3, {"batch_size": 30}, Grid(1, 3), "1f1b", 3, 10, 3),
        (4, {}, Grid(2, 2), "1f1b", 2, 8, 4),
        (4, {"pp": 4}, Grid(1, 4), "1f1b", 4, 16, 2),
        (4, {"pp": 1}, Grid(4, 1), "1f1b", 1, 4, 8),
        (4, {"pp": 1, "schedule": "zbv"}, Grid(4, 1), "1f1b", 1, 4, 8),
        (8, {"pp": 2, "placement": "spread"}, Grid(4, 2, "spread"), "1f1b", 2, 8, 4),
        (2, {"schedule": "simple"}, Grid(1, 2), "gpipe", 2, 8, 4),
        (2, {"schedule": "gpipe", "batch_size": 1}, Grid(1, 2), "gpipe", 2, 1, 1),
        (2, {"schedule": "interleaved"}, Grid(1, 2), "interleaved", 4, 8, 4),
        (2, {"schedule": "interleaved", "chunks": 3}, Grid(1, 2), "interleaved", 6, 8, 4),
        (2, {"schedule": "zero-bubble"}, Grid(1, 2), "zero-bubble", 2, 8, 4),
        (4, {"pp": 4, "schedule": "zbv"}, Grid(1, 4), "zbv", 8, 16, 2),
        (4, {"pp": 4, "schedule": "dualpipev", "microbatches": 8}, Grid(1, 4), "dualpipev", 8, 8, 4),
        (2, {"batch_size": 30, "microbatches": 5}, Grid(1, 2), "1f1b", 2, 5, 6),
        (8, {"tp": 2}, Grid(2, 2, tensor=2), "1f1b", 2, 8, 4),
        (2, {"tp": 2}, Grid(1, 1, tensor=2), "1f1b", 1, 4, 8),
    ],
)  # fmt: skip
def test_options_become_a_layout(world, options, grid, name, stages, microbatches, microbatch):
    found = laid_out(world, **options)
    assert (found.grid, found.schedule, found.stages) == (grid, name, stages)
    assert (found.microbatches, found.microbatch) == (microbatches, microbatch)


def test_a_layout_in_words():
    text = "2 pipelines of 2 ranks (spread), 4 stages, schedule interleaved, 8 microbatches of 4"
    assert str(laid_out(4, pp=2, schedule="interleaved", placement="spread")) == text
    text = "2 pipelines of 2 tensor groups (cluster), 2 stages, schedule 1f1b, 8 microbatches of 4"
    assert str(laid_out(8, pp=2, tp=2)) == text


@given(
    st.integers(1, 8), st.sampled_from([None, 1, 2, 4]), st.sampled_from([*schedules.SCHEDULES, "simple"]),
    st.sampled_from([None, 1, 2, 3]), st.integers(1, 40),
)  # fmt: skip
def test_what_is_laid_out_is_allowed_and_loses_no_sample(world, pp, name, chunks, batch):
    found, text = None, ""
    try:
        found = laid_out(world, pp=pp, schedule=name, chunks=chunks, batch_size=batch)
    except UserError as error:
        text = str(error)
    if found is None:
        assert "; fix: " in text
        return
    schedules.orders(found.schedule, found.grid.pp, found.chunks, found.microbatches)
    assert found.grid.dp * found.grid.pp == world
    assert found.microbatches * found.microbatch == batch
    assert pp in (None, found.grid.pp)


@given(st.integers(2, 6), st.integers(1, 40))
def test_left_alone_there_are_as_many_microbatches_as_are_worth_it(pp, batch):
    found = laid_out(pp, pp=pp, schedule="gpipe", batch_size=batch)
    larger = [n for n in range(found.microbatches + 1, PER_RANK * pp + 1) if batch % n == 0]
    assert not larger
    assert found.microbatches <= PER_RANK * pp


@pytest.mark.parametrize(
    ("world", "options", "message"),
    [
        (6, {"pp": 4}, "option --pp: 4 does not divide the job's 6 ranks; allowed: 1, 2, 3, 6; fix: .*"),
        (6, {"tp": 4}, "option --tp: 4 does not divide the 6 ranks; allowed: 1, 2, 3, 6; fix: .*"),
        (8, {"tp": 2, "pp": 8}, "option --pp: 8 does not divide the job's 4 tensor groups; allowed: 1, 2, 4; fix: .*"),
        (4, {"pp": 1, "chunks": 2}, "option --chunks: 2 with one rank per pipeline; allowed: 1; fix: a larger --pp"),
        (2, {"chunks": 2}, "option --chunks: 2 with --schedule 1f1b; allowed: 1; fix: --schedule interleaved"),
        (2, {"chunks": 2, "schedule": "simple"}, "option --chunks: 2 with --schedule simple; allowed: 1; fix: .*"),
        (2, {"chunks": 1, "schedule": "interleaved"}, "schedule interleaved with 2 stages on 2 pipeline ranks; allowed: 2 or more per rank, .* fix: 4 stages, .*"),
        *((2, {"recompute": True, "schedule": name}, f"option --recompute: not with the schedule {name}, which .*; fix: --recompute False, or --schedule 1f1b")
          for name in ("zero-bubble", "zbv", "dualpipev")),
        (2, {"chunks": 3, "schedule": "zbv"}, "schedule zbv with 6 stages on 2 pipeline ranks; allowed: 2 per rank, .* fix: 4 stages, .*"),
        (4, {"pp": 4, "batch_size": 2}, "option --batch-size: 2 has no number of microbatches that schedule 1f1b allows with 4 stages; its divisors: 1, 2; fix: a multiple of 4"),
        (4, {"pp": 4, "microbatches": 2}, "option --microbatches: 2 is too few for schedule 1f1b; allowed: at least 4, .*; fix: --microbatches 4, or --schedule gpipe"),
        (4, {"pp": 4, "schedule": "interleaved", "batch_size": 27, "microbatches": 9}, "option --microbatches: 9 does not fit schedule interleaved; allowed: a multiple of the rounds .*; fix: --microbatches 8 or 10"),
    ],
)  # fmt: skip
def test_the_rule_that_is_broken_is_named(world, options, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        laid_out(world, **options)


def test_who_has_written_partitions_reads_of_partitions():
    wishes = parse('{"partitions": 4}')
    with pytest.raises(
        UserError, match="^mp_parameters: partitions = 4 does not divide the job's 6 ranks; allowed: 1, "
    ):
        laid_out(6, wishes, pp=4)
    assert wishes.fewer_stages == "fewer partitions"
    assert "--pp" in MpParameters().fewer_stages


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"microbatches": 5}, "option --microbatches: 5 does not divide --batch-size 32; allowed: 1, 2, 4, 8, 16, 32; fix: use one of them, or another --batch-size"),
        ({"accumulation": 2}, "option --accumulation: 2: a pipeline accumulates over its microbatches; fix: a larger --batch-size"),
        ({"compile": True}, "option --compile: True: not for stages of a pipeline; fix: --compile False, or the entrypoint ddp"),
    ],
)  # fmt: skip
def test_options_that_have_no_place_in_a_pipeline_are_refused(options, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        PipelineJobOptions(**options)


def test_without_ddp_all_ranks_are_one_pipeline():
    alone = MpParameters(ddp=False)
    assert laid_out(2, alone, pp=2).grid == Grid(1, 2)
    message = r'^mp_parameters: partitions = 2 on 4 ranks; allowed: 4 without ddp; fix: "ddp": true, or as many partitions as ranks$'
    with pytest.raises(UserError, match=message):
        laid_out(4, alone, pp=2)


@pytest.mark.parametrize(
    ("name", "limit", "held"),
    [("gpipe", 7, 8), ("gpipe", 8, None), ("1f1b", 3, 4), ("1f1b", 4, None), ("gpipe", None, None)],
)
def test_microbatches_in_flight_are_kept_or_refused(name, limit, held):
    wishes = dataclasses.replace(MpParameters(), active_microbatches=limit)
    if held is None:
        assert laid_out(4, wishes, pp=4, schedule=name, microbatches=8).microbatches == 8
        return
    message = (
        f"^mp_parameters: active_microbatches = {limit}; schedule {name} holds {held}; allowed: {held} or more; fix: "
    )
    with pytest.raises(UserError, match=message):
        laid_out(4, wishes, pp=4, schedule=name, microbatches=8)
    laid_out(4, wishes, pp=1, schedule=name, microbatches=8)  # no pipeline, nothing in flight
