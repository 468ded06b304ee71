"""The report lines that users' regular expressions read, and their records."""

import math
import re
from dataclasses import replace

from algorun_train.loop.metrics import EpochReport, Speed, StepReport, clock, perplexity, record

PACE = Speed(unit="images", samples_per_s=1234.56, data_wait=0.01234, peak_memory_mib=345.67, eta_s=3725.2)
STEP = StepReport(step=5, steps=9, epoch=1, epochs=2, train_loss=0.123449, learning_rate=3e-5, pace=PACE)
EPOCH = EpochReport(step=9, epoch=1, epochs=2, train_loss=12.5, val_loss=0.00001, val_accuracy=0.97123, pace=PACE)


def test_the_lines_hold_what_regular_expressions_of_users_look_for():
    assert re.findall(r"train_loss: ([0-9\.]+)", str(STEP)) == ["0.1234"]
    assert re.findall(r"train_loss: ([0-9\.]+)", str(EPOCH)) == ["12.5000"]
    assert re.findall(r"val_loss : ([0-9\.]+)", str(EPOCH)) == ["0.0000"]
    assert re.findall(r"val_accuracy: ([0-9\.]+)", str(EPOCH)) == ["0.9712"]
    assert re.findall(r"learning_rate: ([0-9\.]+)", str(STEP)) == ["0.00003000"]
    for name, value in (("images_per_s", "1234.6"), ("data_wait", "0.0123"), ("peak_memory_mib", "345.7")):
        for line in (str(STEP), str(EPOCH)):
            assert re.findall(rf"{name}: ([0-9\.]+)", line) == [value]
    assert "eta: 1:02:05" in str(STEP)
    assert "\n" not in str(STEP) + str(EPOCH)


def test_records_are_flat_and_exact():
    assert record(EPOCH)["val_loss"] == 0.00001
    assert record(EPOCH)["kind"] == "epoch"
    assert record(STEP)["images_per_s"] == 1234.56
    assert all(not isinstance(value, dict) for value in record(STEP).values())


def test_text_has_sequences_where_images_were_and_counts_tokens():
    pace = replace(PACE, unit="sequences", sample_tokens=4)
    step, epoch = replace(STEP, pace=pace), replace(EPOCH, pace=pace)
    assert str(step) == str(STEP).replace(
        "images_per_s: 1234.6", "sequences_per_s: 1234.6 tokens_per_s: 4938.2"
    ).replace("train_loss: 0.1234 ", "train_loss: 0.1234 train_perplexity: 1.1314 ")
    assert re.findall(r"(train|val)_perplexity: ([0-9\.]+)", str(epoch)) == [
        ("train", "268337.2865"),
        ("val", "1.0000"),
    ]
    only = {"train_perplexity", "val_perplexity", "tokens_per_s", "sequences_per_s"}
    assert set(record(epoch)) == set(record(EPOCH)) - {"images_per_s"} | only
    assert record(step)["sequences_per_s"] == 1234.56
    assert record(step)["tokens_per_s"] == 4 * 1234.56
    assert record(epoch)["val_perplexity"] == math.exp(0.00001)
    assert "val_perplexity" not in record(step)


def test_the_perplexity_of_a_huge_loss_is_a_number():
    assert perplexity(2.0) == math.exp(2)
    assert perplexity(1e6) == perplexity(100.0) < math.inf


def test_an_unknown_eta():
    assert clock(float("inf")) == "?"
    assert clock(59.6) == "0:01:00"
