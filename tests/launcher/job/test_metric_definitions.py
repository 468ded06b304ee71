"""The metric definitions match the lines that training really prints."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from algorun.job import metric_definitions
from algorun.timing.clock import Work
from algorun.timing.data_wait import verdict
from algorun.timing.host_load import HostLoad
from algorun.timing.table import Times
from algorun.timing.table import text as closing_table
from algorun_train.loop.metrics import EpochReport, Speed, StepReport

PACE = Speed(unit="images", samples_per_s=2279.8, data_wait=0.014, peak_memory_mib=346.2, eta_s=8.0)

OF_0_1_0 = {
    "train:loss": r"train_loss: ([0-9\.]+)",
    "validation:loss": r"val_loss : ([0-9\.]+)",
    "validation:accuracy": r"val_accuracy: ([0-9\.]+)",
    "train:images_per_s": r"images_per_s: ([0-9\.]+)",
    "train:sequences_per_s": r"sequences_per_s: ([0-9\.]+)",
    "train:learning_rate": r"learning_rate: ([0-9\.]+)",
    "train:data_wait": r"data_wait: ([0-9\.]+)",
    "train:peak_memory_mib": r"peak_memory_mib: ([0-9\.]+)",
}
TIMES = Times(
    *({"launcher": 25.0, "training": 100.0}, 20, 0, 2, 27.0),
    work=Work(2, samples=2000.0, flops=4e15),
    peak_flops=1e14,
)


def test_every_definition_finds_its_number_in_a_real_line():
    epoch = EpochReport(step=9, epoch=1, epochs=2, train_loss=0.5, val_loss=0.25, val_accuracy=0.97, pace=PACE)
    step = StepReport(step=9, steps=18, epoch=1, epochs=2, train_loss=0.5, learning_rate=0.003, pace=PACE)
    text = StepReport(
        step=9, steps=18, epoch=1, epochs=2, train_loss=0.5, learning_rate=0.003,
        pace=replace(PACE, unit="sequences", sample_tokens=8),
    )  # fmt: skip
    held = replace(epoch, val_loss=0.0, pace=text.pace)
    wait = verdict(HostLoad(True, 9.0, 2, 0.41, 0.3, 16, 0.0, 0.0))
    table = closing_table(TIMES, "algo-1", wait)
    lines = f"[0 algo-1] {epoch}\n[0 algo-1] {step}\n[0 algo-1] {text}\n[0 algo-1] {held}\n{table}"
    found = {each["Name"]: float(re.search(each["Regex"], lines)[1]) for each in metric_definitions.DEFINITIONS}
    assert found == {
        "train:loss": 0.5,
        "validation:loss": 0.25,
        "validation:accuracy": 0.97,
        "train:perplexity": 1.6487,
        "validation:perplexity": 1.0,
        "train:images_per_s": 2279.8,
        "train:sequences_per_s": 2279.8,
        "train:tokens_per_s": 18238.4,
        "train:learning_rate": 0.003,
        "train:data_wait": 0.014,
        "train:peak_memory_mib": 346.2,
        "job:goodput": 80.0,
        "job:samples_per_s": 20.0,
        "job:mfu": 40.0,
        "job:data_wait": 41.0,
        "job:cost": 1.875,
        "train:step_loss": 0.5,
        "train:epoch_loss": 0.5,
        "train:step_perplexity": 1.6487,
        "train:epoch_perplexity": 1.6487,
    }


def test_names_that_0_1_0_did_not_have_stand_in_the_page_about_the_upgrade():
    """And the names and expressions of 0.1.0 stay: dashboards and estimators have copies of them."""
    ours = {each["Name"]: each["Regex"] for each in metric_definitions.DEFINITIONS}
    assert {name: ours.get(name) for name in OF_0_1_0} == OF_0_1_0
    page = (Path(__file__).parents[3] / "docs" / "upgrade.md").read_text(encoding="utf-8")
    assert [name for name in ours if name not in OF_0_1_0 and f"`{name}`" not in page] == []
    assert f"`train_loss: {metric_definitions.NUMBER}`" in page


@pytest.mark.parametrize("unit", ["images", "sequences"])
def test_a_mean_since_the_last_report_and_one_of_an_epoch_have_a_name_each(unit):
    pace = replace(PACE, unit=unit, sample_tokens=8 if unit == "sequences" else 0)
    epoch = EpochReport(step=9, epoch=1, epochs=2, train_loss=0.5, val_loss=0.25, val_accuracy=0.97, pace=pace)
    step = StepReport(step=5, steps=18, epoch=1, epochs=2, train_loss=1.5, learning_rate=0.003, pace=pace)
    lines = [f"[0 algo-1] {step}", f"[0 algo-1] {epoch}"]
    regexes = {each["Name"]: each["Regex"] for each in metric_definitions.DEFINITIONS}
    found = {
        name: [float(match[1]) for line in lines if (match := re.search(regexes[name], line))]
        for name in ("train:loss", "train:step_loss", "train:epoch_loss")
    }
    assert found == {"train:loss": [1.5, 0.5], "train:step_loss": [1.5], "train:epoch_loss": [0.5]}
    if unit == "sequences":
        names = ("train:step_perplexity", "train:epoch_perplexity")
        assert [len(re.findall(regexes[name], "\n".join(lines))) for name in names] == [1, 1]
