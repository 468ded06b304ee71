"""The script of docs/first-job.md: its five lines are those of the page, and they do what the page says."""

from __future__ import annotations

import re
import signal

import pytest
import torch

from tests.conftest import ROOT

from .running import Running, simulate

PAGE = ROOT / "docs" / "first-job.md"
SCRIPT = ROOT / "examples" / "first_job" / "train.py"
WORDS = ["--epochs", "30", "--steps", "30"]


def weights(folder):
    return torch.load(folder / "algo-1" / "model" / "model.pt", weights_only=True)


def test_the_five_lines_of_the_page_are_those_of_the_script():
    numbered = [line for line in SCRIPT.read_text().splitlines() if re.search(r"  # [1-5]\b", line)]
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert block.splitlines() == numbered
    assert [re.search(r"# (\d)", line)[1] for line in numbered] == ["1", "2", "3", "4", "5"]


# The lines of docs/first-job.md run it as the page says.
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_goes_on_and_ends_with_the_weights_of_one_that_was_not(number, tmp_path, nothing_left):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    done = simulate("native", SCRIPT, *WORDS, folder=whole, marker=nothing_left)
    assert done.code == 0, done.text
    running = Running("native", SCRIPT, *WORDS, folder=parts, marker=nothing_left)
    running.wait_for("epoch: 2/30", 1)
    running.process.send_signal(number)
    assert running.process.wait(60) == (130 if number == signal.SIGINT else 0)
    first = running.log.read_text()
    assert "epoch: 30/30" not in first, "the stop came too late to show anything"
    rest = simulate("native", SCRIPT, *WORDS, folder=parts, marker=nothing_left, resume=True)
    assert rest.code == 0, rest.text
    assert "epoch: 1/30" not in rest.out
    assert "epoch: 30/30" in rest.out
    expected, found = weights(whole / "algorun-simulate"), weights(parts / "algorun-simulate")
    assert all(torch.equal(expected[name], found[name]) for name in expected)
