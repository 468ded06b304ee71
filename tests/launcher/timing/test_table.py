"""The closing table as text and in result.json."""

from __future__ import annotations

from algorun.timing.clock import CAUSES, Work
from algorun.timing.table import LABELS, Times, text


def test_the_table_names_causes_goodput_and_cost():
    times = Times({"launcher": 1.0, "gate": 0.01, "import": 4.0, "training": 95.0}, 20, 0, 2, price=3.6)
    assert text(times, "algo-1").splitlines() == [
        "algorun: time of algo-1: 100.0 s",
        "        1.0 s   1.0%  start of the launcher",
        "        4.0 s   4.0%  starting processes, importing",
        "       95.0 s  95.0%  training: all steps after the first",
        "  goodput 95.0%, 20 steps, 5 s a step",
        "  cost 0.2: 2 hosts, 0.02778 h, 3.6 per host and hour",
    ]


def test_rates_and_mfu_are_those_of_training_without_its_evaluations():
    work = Work(2, samples=1000.0, tokens=64000.0, flops=4e15)
    spent = {"evaluation": 65.0}  # most of it after the last step
    times = Times({"training": 105.0}, 20, 0, 2, activities=spent, beside=5.0, work=work, world_size=4, peak_flops=1e14)
    assert "  trained 20.0 samples/s, 1280.0 tokens/s, MFU 40.0%" in text(times, "algo-1").splitlines()
    found = times.to_json()
    assert (found["samples_per_s"], found["tokens_per_s"], found["mfu"]) == (20.0, 1280.0, 0.4)
    unknown = Times({"training": 105.0}, 20, 0, 2, work=work)
    assert "MFU" not in text(unknown, "algo-1")
    assert "trained" not in text(Times({"training": 105.0}, 20, 0, 2), "algo-1")


def test_what_is_not_known_is_not_said():
    times = Times({"launcher": 1.0, "program": 2.0}, 0, 0, 1)
    assert "goodput" not in text(times, "algo-1")
    assert "cost" not in text(times, "algo-1")
    assert times.to_json() == {"wall_s": 3.0, "seconds": {"launcher": 1.0, "program": 2.0}}


def test_small_rows_become_the_rest():
    times = Times({"launcher": 0.4, "gate": 0.4, "program": 999.2}, 0, 0, 1)
    rows = text(times, "algo-1").splitlines()[1:]
    assert [row.split("  ")[-1] for row in rows] == [LABELS["program"], "rest"]


def test_steps_of_failed_attempts_are_named():
    assert "7 steps in failed attempts; checkpoints may have kept some" in text(
        Times({"training": 2.0, "lost_attempts": 1.0}, 3, 7, 1), "algo-1"
    )


def test_every_cause_has_a_label():
    assert tuple(LABELS) == CAUSES
    assert len(CAUSES) + 5 <= 22, "the table stays short"


def test_what_a_rank_says_is_named_and_its_evaluations_and_saves_are_no_goodput():
    said = {"data": 30.0, "forward": 40.0, "backward": 0.01, "saving": 5.0, "evaluation": 5.0}
    times = Times({"launcher": 20.0, "training": 80.0}, 9, 0, 1, activities=said, beside=10.0)
    rows = text(times, "algo-1").splitlines()
    assert "  a rank spent 40.0 s in forward, 30.0 s in data, 5.0 s in saving, 5.0 s in evaluation" in rows
    assert "  37% of that was waiting for batches; see docs/time.md" in rows
    assert "  goodput 70.0%, 9 steps, 10 s a step" in rows
    assert times.to_json()["activities"] == said
    assert "waiting" not in text(Times({"training": 80.0}, 9, 0, 1, activities={**said, "data": 4.0}), "algo-1")


def test_times_of_gpus_are_named_as_such():
    times = Times({"training": 80.0}, 9, 0, 1, activities={"backward": 40.0}, on_gpu=True)
    assert "  a rank's GPU spent 40.0 s in backward" in text(times, "algo-1").splitlines()
    assert times.to_json()["activities_of"] == "GPU"
    assert Times({"training": 80.0}, 9, 0, 1, activities={"backward": 40.0}).to_json()["activities_of"] == "CPU"
