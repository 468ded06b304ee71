"""The pipeline entrypoint on real ranks: training, stops and resumption in any layout, what it leaves, what it refuses."""

import itertools
import json
import re
import signal
from xml.etree import ElementTree

import pytest
import torch
from torch.nn import functional

from algorun_train.data.text import sequences
from algorun_train.models import gpt
from algorun_train.parallel import schedules
from tests.train.training_runs import Ranks, epochs

from .pipeline_runs import CLIPPED, SPLIT, TINY, checkpoints, ended, refused, same, weights, words

STEPS = 16  # of two epochs of 124 sequences in batches of 16


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, text):
    """A run of two pipelines of two ranks that nobody disturbs, explained; and its partition file."""
    base = tmp_path_factory.mktemp("uninterrupted")
    run = Ranks(
        base,
        1,
        4,
        words(
            TINY,
            SPLIT,
            CLIPPED,
            {"train": text, "explain": True, "placement": "spread", "partition": base / "made.json"},
        ),
        program="algorun_train.jobs.pipeline",
    )
    try:
        ended(run)
    finally:
        run.kill()
    return run


def partitioned(uninterrupted: Ranks) -> dict:
    """Stages as the undisturbed run had them: where they begin decides the order in which a norm is summed."""
    return {"partition": uninterrupted.base / "made.json", "placement": "spread"}


def test_the_plan_is_shown_before_and_the_measured_schedule_after(uninterrupted):
    said = uninterrupted.text()
    assert "layout: 2 pipelines of 2 ranks (spread), 2 stages, schedule 1f1b, 4 microbatches of 2" in said
    plan, _, training = said.partition("\nmodel: ")
    assert "rank 0 |F0 F1 " in plan
    assert re.search(r"^stage +rank +first unit", plan, re.MULTILINE)
    table = training.partition("memory: planned against measured")[2]
    ratios = re.findall(r"^ +\d+ +[\d.]+ +[\d.]+ +([\d.]+)$", table, re.MULTILINE)
    assert len(ratios) == 2
    assert all(0.9 < float(ratio) < 1.1 for ratio in ratios)  # the same things are counted on both sides
    output = uninterrupted.base / "host0" / "output" / "data"
    assert ElementTree.parse(output / "schedule.svg").getroot().tag.endswith("svg")
    events = json.loads((output / "schedule-trace.json").read_text())["traceEvents"]
    for rank, order in enumerate(schedules.orders("1f1b", 2, 1, 4)):
        spans = sorted((e for e in events if e["ph"] == "X" and e["pid"] == rank), key=lambda e: e["ts"])
        assert [e["name"] for e in spans] == [str(action) for action in order]
        assert all(one["ts"] + one["dur"] <= two["ts"] + 0.01 for one, two in itertools.pairwise(spans))


def test_the_artifact_is_the_whole_plain_model(uninterrupted, text):
    base = uninterrupted.base
    described = json.loads((base / "host0" / "model" / "model.json").read_text())
    names = gpt.GptSpec.__dataclass_fields__
    model = gpt.build(gpt.GptSpec(**{key: value for key, value in described.items() if key in names}), seed=9)
    left = weights(base)
    assert list(left) == list(model.state_dict())
    model.load_state_dict(left)
    held = sequences((text / "a.txt").read_bytes(), 32, 1, "")[-14:].long()
    with torch.no_grad():
        logits = model.eval()(held[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), held[:, 1:].flatten())
    last = epochs(base / "host0")[-1]
    assert last["val_loss"] == pytest.approx(float(loss), rel=1e-5)
    assert last["val_loss"] == described["val_loss"]
    assert last["val_loss"] < 5
    assert json.loads((base / "host0" / "output" / "data" / "summary.json").read_text())["steps"] == STEPS


def test_killed_and_started_again_it_ends_bit_identical(start, uninterrupted):
    same_parts = partitioned(uninterrupted)
    half = f"step: {STEPS // 2 + 2}/"
    run = start(4, SPLIT, CLIPPED, same_parts, {"checkpoint-interval-s": 0.001, "keep-checkpoints": 3}, hold=half)
    run.wait_for(half)
    run.signal(signal.SIGKILL)
    run.codes()
    again = start(4, SPLIT, CLIPPED, same_parts, base=run.base)
    said = ended(again)
    assert "resumed: " in said
    assert f"partition: of {same_parts['partition']}" in said
    assert same(weights(run.base), weights(uninterrupted.base))
    assert [e["val_loss"] for e in epochs(run.base / "host0")] == [
        e["val_loss"] for e in epochs(uninterrupted.base / "host0")
    ]


@pytest.mark.slow
def test_it_goes_on_in_other_layouts_as_if_nothing_had_been(start, uninterrupted):
    often = {"checkpoint-interval-s": 0.001, "keep-checkpoints": 3}
    run = start(4, SPLIT, CLIPPED, often)
    run.wait_for("checkpoint: ")
    run.signal(signal.SIGKILL)
    run.codes()
    newest = int(checkpoints(run.base)[-1].removeprefix("step-"))
    further = f"step: {newest + 2}/"
    second = start(4, CLIPPED, {"pp": 4, "batch-size": 16, "microbatches": 8}, base=run.base, hold=further)
    second.wait_for(further)
    second.signal(signal.SIGTERM, ranks=[2])
    said = ended(second)
    assert "resumed: " in said
    stopped = int(re.search(r"stopped on request after step (\d+)", said)[1])
    assert checkpoints(run.base)[-1] == f"step-{stopped:08d}"
    assert len(list((run.base / "host0" / "checkpoints" / checkpoints(run.base)[-1]).glob("*.pt"))) == 4
    third = start(2, CLIPPED, {"schedule": "interleaved", "batch-size": 16, "microbatches": 4}, often, base=run.base)
    third.wait_for(f"step: {stopped + 1}/")
    third.wait_for("checkpoint: ")
    third.signal(signal.SIGKILL)
    third.codes()
    assert f"resumed: {run.base}/host0/checkpoints/step-{stopped:08d}, " in third.text()
    last = ended(start(4, CLIPPED, {"pp": 1, "batch-size": 4}, base=run.base))
    assert int(re.search(r"resumed: \S+/step-(\d+), ", last)[1]) > stopped
    assert "4 pipelines of 1 rank " in last
    ours, theirs = epochs(run.base / "host0"), epochs(uninterrupted.base / "host0")
    assert [e["step"] for e in ours] == [e["step"] for e in theirs]
    for one, two in zip(ours, theirs, strict=True):
        assert one["val_loss"] == pytest.approx(two["val_loss"], rel=1e-5)
        assert one["train_loss"] == pytest.approx(two["train_loss"], rel=1e-5)


def test_the_checkpoint_of_another_job_is_refused(start, uninterrupted):
    assert "depth is 4 there, 2 here" in refused(start(2, {"depth": 2}, base=uninterrupted.base))


def test_a_finished_job_with_another_rate_is_refused_in_any_layout(start, uninterrupted):
    text = refused(start(2, SPLIT, CLIPPED, {"lr": 0.25, "placement": "cluster"}, base=uninterrupted.base))
    assert re.search(
        r"step-00000016 has trained 2 of --epochs 2: no step is left to train \(lr was \S+, is 0.25\)", text
    )
