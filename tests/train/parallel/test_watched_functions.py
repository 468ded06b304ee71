"""A stage watches the functions between its units, and none within them: that would cost time for each."""

import contextlib
import runpy
from typing import ClassVar

import pytest
import torch
from torch import nn, overrides
from torch.overrides import TorchFunctionMode

from algorun_train.parallel.cut import partial_forward
from algorun_train.parallel.cut.any_module import cut
from tests.train import split_runs


class Watcher(TorchFunctionMode):
    """A mode of the user's own."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Counting(nn.Linear):
    """Notes how many modes watch the functions within it."""

    counts: ClassVar[list[int]] = []

    def forward(self, tensor):
        self.counts.append(len(overrides._get_current_function_mode_stack()))
        return super().forward(tensor)


class Watched(nn.Module):
    """Four layers, in a mode of the model's own if it is to enter one."""

    def __init__(self, own):
        super().__init__()
        self.layers, self._own = nn.ModuleList(Counting(6, 6) for _ in range(4)), own

    def forward(self, tensor):
        with Watcher() if self._own else contextlib.nullcontext():
            for layer in self.layers:
                tensor = torch.relu(layer(tensor) + 1)
        return tensor


@pytest.mark.parametrize(("own", "modes"), [(False, {0}), (True, {1, 2})])
def test_functions_within_units_are_watched_by_nobody_but_the_user(own, modes):
    model, example = Watched(own), torch.randn(3, 6)
    stages = split_runs.cut_at(cut(model, example, stages=2), [0, 2])
    expected = split_runs.whole(model, example)
    Counting.counts.clear()
    split_runs.assert_equal(expected, split_runs.split(stages, model, (example,)))
    assert set(Counting.counts) == modes
    assert not overrides._get_current_function_mode_stack()


@pytest.mark.parametrize(("own", "modes"), [(False, {1}), (True, {2})])
def test_a_torch_without_the_private_name_cuts_alike_and_watches_more(own, modes, monkeypatch):
    monkeypatch.delattr(overrides, "_get_current_function_mode")
    there = runpy.run_path(partial_forward.__file__, run_name=f"{partial_forward.__package__}.there")
    monkeypatch.setattr(partial_forward, "_innermost_mode", there["_innermost_mode"])
    model, example = Watched(own), torch.randn(3, 6)
    stages = split_runs.cut_at(cut(model, example, stages=2), [0, 2])
    expected = split_runs.whole(model, example)
    Counting.counts.clear()
    split_runs.assert_equal(expected, split_runs.split(stages, model, (example,)))
    assert modes <= set(Counting.counts)
    assert not overrides._get_current_function_mode_stack()
