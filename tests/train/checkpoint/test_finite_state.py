"""No checkpoint holds a weight or an optimizer's state that is not finite."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from algorun_train.checkpoint.finite_state import first_broken


def trained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    model.register_buffer("mask", torch.full((2, 2), -math.inf))
    model.register_buffer("count", torch.zeros(3, dtype=torch.int64))
    model.register_parameter("empty", nn.Parameter(torch.ones(0)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model[0].requires_grad_(requires_grad=False)
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_healthy_state_with_an_infinite_mask_is_saved():
    assert first_broken([trained()[0]], trained()[1]) == ""


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_weight_and_a_moment_are_named(value):
    model, optimizer = trained()
    model[2].weight.data[0, 1] = value
    assert first_broken([model], optimizer) == "2.weight"
    model, optimizer = trained()
    optimizer.state[model[2].bias]["exp_avg_sq"][0] = value
    assert first_broken([model], optimizer) == "exp_avg_sq of 2.bias"


def test_what_is_not_trained_may_be_infinite_and_never_nan():
    model, optimizer = trained()
    model[0].weight.data[0] = -math.inf
    assert first_broken([model], optimizer) == ""
    model[0].weight.data[0] = math.nan
    assert first_broken([model], optimizer) == "0.weight"
    model, optimizer = trained()
    model[1].running_mean[0] = math.nan
    assert first_broken([model], optimizer) == "1.running_mean"
