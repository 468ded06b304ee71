"""smp.optimizers.FusedLAMB against the algorithm written out in NumPy."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch

import smdistributed.modelparallel.torch as smp
from algorun_train.common.errors import UserError


def written_out(weights, gradients, lr, decay, *, corrects=True, averages=True, adam_w=True, limit=1.0, always=False):
    """The weights after a step for each row of gradients, of which each is a list of arrays."""
    weights = [w.copy() for w in weights]
    m, v = ([np.zeros_like(w) for w in weights] for _ in range(2))
    for t, row in enumerate(gradients, 1):
        norm = np.sqrt(sum((g**2).sum() for g in row))
        row = [g * min(1, limit / (norm + 1e-6)) if limit else g for g in row]
        for i, g in enumerate(row):
            w = weights[i]
            g = g if adam_w else g + decay * w
            m[i] = 0.9 * m[i] + (0.1 if averages else 1) * g
            v[i] = 0.999 * v[i] + 0.001 * g**2
            a, b = (1 - 0.9**t, 1 - 0.999**t) if corrects else (1, 1)
            u = (m[i] / a) / (np.sqrt(v[i] / b) + 1e-6) + (decay * w if adam_w else 0)
            ratio = np.linalg.norm(w) / np.linalg.norm(u) if (decay or always) and np.linalg.norm(w) else 1
            weights[i] = w - lr * ratio * u
    return weights


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, {}),
        ({"weight_decay": 0.0}, {}),
        ({"weight_decay": 0.0, "use_nvlamb": True}, {"always": True}),
        ({"bias_correction": False, "grad_averaging": False}, {"corrects": False, "averages": False}),
        ({"adam_w_mode": False, "max_grad_norm": None}, {"adam_w": False, "limit": None}),
    ],
    ids=["default", "no decay", "nvlamb", "uncorrected", "L2"],
)
def test_steps_are_those_of_the_algorithm(options, said):
    random = np.random.default_rng(7)
    shapes = [(4, 3), (3,), (2, 2)]
    weights = [random.normal(size=shape) for shape in shapes[:2]] + [np.zeros(shapes[2])]
    gradients = [[random.normal(size=shape) * 3 for shape in shapes] for _ in range(5)]
    parameters = [torch.nn.Parameter(torch.tensor(w)) for w in weights]
    optimizer = smp.optimizers.FusedLAMB(parameters, lr=0.02, **options)
    for row in gradients:
        for parameter, gradient in zip(parameters, row, strict=True):
            parameter.grad = torch.tensor(gradient)
        optimizer.step()
    wanted = written_out(weights, gradients, 0.02, options.get("weight_decay", 0.01), **said)
    for parameter, w in zip(parameters, wanted, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), w, rtol=1e-10, atol=1e-12)


def saved_and_loaded(optimizer):
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, saved_and_loaded])
def test_a_copy_steps_as_the_original(copied):
    """With adam_w_mode=False and use_nvlamb=True, both unlike the defaults; without weight decay the second one counts."""
    weights = [torch.nn.Parameter(torch.tensor([1.0, 2.0])) for _ in range(2)]
    groups = [{"params": weights[:1], "weight_decay": 0.1}, {"params": weights[1:]}]
    one = smp.optimizers.FusedLAMB(groups, lr=0.1, weight_decay=0.0, adam_w_mode=False, use_nvlamb=True)
    other = copied(one)
    for optimizer in (one, other):
        for group in optimizer.param_groups:
            group["params"][0].grad = torch.tensor([0.5, -0.25])
        optimizer.step()
    for group, same in zip(one.param_groups, other.param_groups, strict=True):
        assert torch.equal(group["params"][0], same["params"][0])


def test_state_that_was_saved_without_the_modes_goes_on_in_the_optimizers_own():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = smp.optimizers.FusedLAMB([parameter], adam_w_mode=False, use_nvlamb=True)
    saved = optimizer.state_dict()
    saved["param_groups"] = [
        {name: value for name, value in group.items() if name not in ("adam_w_mode", "use_nvlamb")}
        for group in saved["param_groups"]
    ]
    optimizer.load_state_dict(saved)
    parameter.grad = torch.ones(3)
    optimizer.step()
    assert (optimizer.param_groups[0]["adam_w_mode"], optimizer.param_groups[0]["use_nvlamb"]) == (False, True)


def test_its_state_goes_on_and_amsgrad_is_refused():
    parameter = torch.nn.Parameter(torch.ones(3))
    one, other = (smp.optimizers.FusedLamb([parameter], lr=0.1) for _ in range(2))
    parameter.grad = torch.ones(3)
    assert one.step(lambda: 2.0) == 2.0
    other.load_state_dict(one.state_dict())
    assert float(other.state[parameter]["step"]) == 1
    with pytest.raises(UserError, match=r"^FusedLAMB: amsgrad = True; allowed: False; fix: leave it out$"):
        smp.optimizers.FusedLAMB([parameter], amsgrad=True)
